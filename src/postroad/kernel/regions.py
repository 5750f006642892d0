"""The table of regions: name, geo, position. Pure."""

import math
from dataclasses import dataclass

GEOS = ("na", "sa", "eu", "ap", "oc", "af")
AUTO = "auto"  # the geo of the gateway if it has enough servers, else any server
TAG = "region:"  # prefix of the tag that a server of a region has
_EARTH_KM = 6371.0


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """A region. `latitude` and `longitude` are those of its city, of the shipped regions only."""

    name: str
    geo: str
    city: str = ""
    latitude: float = 0.0
    longitude: float = 0.0

    @property
    def tag(self) -> str:
        return TAG + self.name


SHIPPED = (
    RegionEntry("us-east", "na", "Newark", 40.7, -74.2),
    RegionEntry("us-central", "na", "Dallas", 32.8, -96.8),
    RegionEntry("us-west", "na", "Fremont", 37.5, -122.0),
    RegionEntry("us-southeast", "na", "Atlanta", 33.7, -84.4),
    RegionEntry("us-ord", "na", "Chicago", 41.9, -87.6),
    RegionEntry("us-sea", "na", "Seattle", 47.6, -122.3),
    RegionEntry("ca-central", "na", "Toronto", 43.7, -79.4),
    RegionEntry("br-gru", "sa", "São Paulo", -23.5, -46.6),
    RegionEntry("cl-scl", "sa", "Santiago", -33.4, -70.7),
    RegionEntry("co-bog", "sa", "Bogotá", 4.7, -74.1),
    RegionEntry("eu-west", "eu", "London", 51.5, -0.1),
    RegionEntry("eu-central", "eu", "Frankfurt", 50.1, 8.7),
    RegionEntry("fr-par", "eu", "Paris", 48.9, 2.4),
    RegionEntry("nl-ams", "eu", "Amsterdam", 52.4, 4.9),
    RegionEntry("se-sto", "eu", "Stockholm", 59.3, 18.1),
    RegionEntry("it-mil", "eu", "Milan", 45.5, 9.2),
    RegionEntry("ap-south", "ap", "Singapore", 1.4, 103.8),
    RegionEntry("ap-northeast", "ap", "Tokyo", 35.7, 139.7),
    RegionEntry("ap-west", "ap", "Mumbai", 19.1, 72.9),
    RegionEntry("in-maa", "ap", "Chennai", 13.1, 80.3),
    RegionEntry("jp-osa", "ap", "Osaka", 34.7, 135.5),
    RegionEntry("ap-southeast", "oc", "Sydney", -33.9, 151.2),
    RegionEntry("au-mel", "oc", "Melbourne", -37.8, 145.0),
    RegionEntry("nz-akl", "oc", "Auckland", -36.8, 174.8),
    RegionEntry("za-jnb", "af", "Johannesburg", -26.2, 28.0),
    RegionEntry("ke-nbo", "af", "Nairobi", -1.3, 36.8),
    RegionEntry("ng-los", "af", "Lagos", 6.5, 3.4),
)


def parse_table(text: str) -> tuple[RegionEntry, ...]:
    """The regions of a text such as `fra=eu, iad=na`; the shipped ones if it is empty. Raises ValueError."""
    if not text.strip():
        return SHIPPED
    entries: dict[str, RegionEntry] = {}
    for part in text.split(","):
        name, _, geo = (piece.strip() for piece in part.partition("="))
        if geo not in GEOS:
            raise ValueError(f"{part.strip()!r} is not <region>=<geo> with a geo of {', '.join(GEOS)}")
        if not name or not all(char.isascii() and (char.isalnum() or char in "-_") for char in name) or len(name) > 40:
            raise ValueError(f"{name!r} is not a name of a region")
        if name in entries or name in GEOS or name == AUTO:
            raise ValueError(f"{name!r} is used twice")
        entries[name] = RegionEntry(name, geo)
    return tuple(entries.values())


def distance_km(one: RegionEntry, other: RegionEntry) -> float:
    """Along a great circle."""
    first, second = math.radians(one.latitude), math.radians(other.latitude)
    east = math.radians(other.longitude - one.longitude)
    cosine = math.sin(first) * math.sin(second) + math.cos(first) * math.cos(second) * math.cos(east)
    return _EARTH_KM * math.acos(min(1.0, max(-1.0, cosine)))
