"""The certificates that verify envelopes of SNS. Open to all: receivers have no credential."""

from postroad.aws.sns_signing import CERTIFICATE_PATH, SnsSigningKeys
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.errors import RouteNotFound


class SnsCertificateRoutes:
    def __init__(self, keys: SnsSigningKeys) -> None:
        self._keys = keys

    def table(self) -> list[Route]:
        return [
            Route(
                "GET",
                f"{CERTIFICATE_PATH}{{certificate}}",
                self.get_certificate,
                None,
                "Get the certificate of SNS envelopes",
                "AWS",
                media="application/x-pem-file",
                errors=(RouteNotFound,),
                description="`SigningCertURL` of an envelope names it.",
            )
        ]

    async def get_certificate(self, request: Request) -> Response:
        found = await self._keys.certificate(request.parameters["certificate"])
        if found is None:
            raise RouteNotFound("there is no such certificate")
        return Response(found.encode(), media=b"application/x-pem-file", headers=[(b"cache-control", b"public, max-age=86400")])
