// Verification of deliveries in a Rust service. Cargo.toml: hmac = "0.12", sha2 = "0.10", hex = "0.4", subtle = "2"
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// True if `signature` (X-MQ-Signature) is that of `timestamp` (X-MQ-Timestamp) and `body`. Answer 400 otherwise.
pub fn verify(secret: &[u8], timestamp: &str, signature: &str, body: &[u8]) -> bool {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(timestamp.as_bytes());
    mac.update(b".");
    mac.update(body);
    let expected = format!("sha256={}", hex::encode(mac.finalize().into_bytes()));
    expected.as_bytes().ct_eq(signature.as_bytes()).into()
}
