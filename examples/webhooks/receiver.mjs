// A receiver of deliveries with Node.js alone: checks X-MQ-Signature.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const secret = process.env.SECRET;
const seen = new Set(); // a real service remembers ids in its database, together with what it did

function isValid(headers, body) {
  const expected = "sha256=" + createHmac("sha256", secret).update(`${headers["x-mq-timestamp"]}.`).update(body).digest("hex");
  const given = Buffer.from(headers["x-mq-signature"] ?? "");
  return given.length === expected.length && timingSafeEqual(given, Buffer.from(expected));
}

createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts);
    const headers = request.headers;
    if (!isValid(headers, body)) {
      response.writeHead(400).end("bad signature\n");
      return;
    }
    const id = `${headers["x-mq-topic"]}/${headers["x-mq-id"]}`;
    if (!seen.has(id)) {
      seen.add(id);
      console.log(headers["x-mq-topic"], headers["x-mq-published-subject"], headers["x-mq-id"], body.toString());
    }
    response.writeHead(200).end("ok\n");
  });
}).listen(Number(process.env.PORT ?? 9000), "127.0.0.1");
