"""GPU types, data centers and network volumes on offer. Prices and stock are examples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .base import Answer, Problem, Request

CENTERS = {
    "EU-RO-1": ("EU Romania 1", "EUROPE"),
    "EU-SE-1": ("EU Sweden 1", "EUROPE"),
    "US-KS-2": ("US Kansas 2", "NORTH_AMERICA"),
    "US-TX-3": ("US Texas 3", "NORTH_AMERICA"),
    "CA-MTL-1": ("CA Montreal 1", "NORTH_AMERICA"),
}
LEVELS = ("NONE", "LOW", "MEDIUM", "HIGH")


@dataclass(frozen=True)
class Gpu:
    """A GPU type as the catalog shows it. ``memory`` in GB; prices in USD per hour and GPU."""

    id: str
    name: str
    memory: int
    secure: float
    community: float
    availability: str = "HIGH"
    centers: tuple[str, ...] = ("EU-RO-1", "US-KS-2")
    cuda: tuple[str, ...] = ("12.4", "12.8")
    max_count: int = 8
    manufacturer: str = "NVIDIA"
    clouds: tuple[str, ...] = ("SECURE", "COMMUNITY")
    pool: str | None = None

    def price(self, cloud: str) -> float:
        return self.secure if cloud == "SECURE" else self.community

    def plain(self) -> dict[str, Any]:
        count = {cloud.lower(): self.max_count if cloud in self.clouds else 0 for cloud in ("SECURE", "COMMUNITY")}
        return {
            "id": self.id,
            "name": self.name,
            "pool": self.pool,
            "manufacturer": self.manufacturer,
            "memory": self.memory,
            "secure": "SECURE" in self.clouds,
            "community": "COMMUNITY" in self.clouds,
            "price": {"secure": self.secure, "community": self.community},
            "maxCount": count,
        }


GPUS = (
    Gpu("NVIDIA GeForce RTX 3090", "RTX 3090", 24, 0.46, 0.22, pool="AMPERE_24"),
    Gpu("NVIDIA RTX A5000", "RTX A5000", 24, 0.27, 0.16, "LOW", ("EU-RO-1", "US-TX-3"), pool="AMPERE_24"),
    Gpu("NVIDIA L4", "L4", 24, 0.39, 0.39, "MEDIUM", ("EU-RO-1", "EU-SE-1"), clouds=("SECURE",), pool="AMPERE_24"),
    Gpu("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, 0.34, pool="ADA_24", centers=tuple(CENTERS)),
    Gpu("NVIDIA A40", "A40", 48, 0.40, 0.35, "NONE", ("CA-MTL-1",), pool="AMPERE_48"),
    Gpu("NVIDIA L40S", "L40S", 48, 0.86, 0.79, "LOW", ("US-TX-3",), pool="ADA_48_PRO"),
    Gpu("NVIDIA A100 80GB PCIe", "A100 PCIe", 80, 1.64, 1.19, "MEDIUM", ("EU-RO-1", "CA-MTL-1"), pool="AMPERE_80"),
    Gpu("NVIDIA H100 80GB HBM3", "H100 SXM", 80, 2.99, 2.69, "LOW", ("US-KS-2",), ("12.8", "13.0"), pool="ADA_80_PRO"),
    Gpu("AMD Instinct MI300X OAM", "MI300X", 192, 2.49, 2.29, "LOW", ("EU-RO-1",), (), manufacturer="AMD"),
    Gpu("unknown", "unknown", 0, 0.0, 0.0, "NONE", (), (), 0, "UNKNOWN", ()),
)


@dataclass(frozen=True)
class Volume:
    """A network volume; a folder keeps what pods write to it."""

    id: str
    name: str
    center: str
    size: int = 50

    def plain(self) -> dict[str, Any]:
        both = {"dataCenter": self.center, "type": "STANDARD"}
        return {"id": self.id, "name": self.name, "size": self.size, **both}


@dataclass
class Catalog:
    """What can be rented now; ``change`` and ``volumes`` are for tests."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.gpus = {gpu.id: gpu for gpu in GPUS}
        self.volumes = {"sandboxvol1": Volume("sandboxvol1", "cache", "EU-RO-1")}

    def change(self, gpu: str, **values: Any) -> None:
        """Change what the catalog says of a GPU type."""
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        self.gpus[gpu] = replace(self.gpus[gpu], **values)

    def add_volume(self, id: str, center: str, name: str = "volume") -> None:
        self.volumes[id] = Volume(id, name, center)

    def list_gpus(self, request: Request) -> Answer:
        query = request.query
        include = [part for part in query.get("include", "").split(",") if part]
        products = [part for part in query.get("product", "").split(",") if part]
        _among("include", include, ("AVAILABILITY",))
        _among("product", products, ("POD", "CLUSTER", "SERVERLESS"))
        if bool(include) != bool(products):
            raise Problem(400, "include=AVAILABILITY requires product, and product is valid only with it")
        narrowing = {"count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion"} & set(query)
        if narrowing and not include:
            raise Problem(400, f"{sorted(narrowing)[0]} is valid only with include=AVAILABILITY")
        if not include:
            return Answer(body={"gpus": [gpu.plain() for gpu in self.gpus.values()]})
        shown = [self._available(gpu, query) for gpu in self.gpus.values()]
        return Answer(body={"gpus": [gpu for gpu in shown if gpu]})

    def list_centers(self, request: Request) -> Answer:
        include = [part for part in request.query.get("include", "").split(",") if part]
        _among("include", include, ("GPU_AVAILABILITY", "CPU_AVAILABILITY"))
        shown = []
        for id_, (name, region) in CENTERS.items():
            center: dict[str, Any] = {"id": id_, "name": name, "region": region, "globalNetwork": True}
            center |= {"networkVolumeTypes": ["STANDARD"], "compliance": ["SOC_2_TYPE_2"]}
            gpus = [gpu for gpu in self.gpus.values() if id_ in gpu.centers]
            if gpus and "GPU_AVAILABILITY" in include:
                center["gpuAvailability"] = [
                    {"id": gpu.id, "name": gpu.name, "availability": gpu.availability} for gpu in gpus
                ]
            shown.append(center)
        return Answer(body={"dataCenters": shown})

    def list_volumes(self, _: Request) -> Answer:
        return Answer(body={"networkVolumes": [volume.plain() for volume in self.volumes.values()]})

    def _available(self, gpu: Gpu, query: dict[str, str]) -> dict[str, Any] | None:
        cloud = query.get("cloud", "SECURE")
        _among("cloud", [cloud], ("SECURE", "COMMUNITY"))
        countries = [code for code in query.get("countryCodes", "").split(",") if code]
        centers = [c for c in gpu.centers if not countries or c.split("-")[0] in countries or _country(c) in countries]
        if countries and not centers:
            return None
        floor = query.get("minCudaVersion")
        exact = [version for version in query.get("cudaVersions", "").split(",") if version]
        versions = [v for v in gpu.cuda if (not floor or at_least(v, floor)) and (not exact or v in exact)]
        count = _whole("count", query.get("count", "1"))
        fits = cloud in gpu.clouds and count <= gpu.max_count and bool(versions or not (floor or exact))
        level = gpu.availability if fits and centers else "NONE"
        shown = gpu.plain() | {"availability": level}
        if level != "NONE":
            shown["dataCenters"] = [{"id": c, "name": CENTERS[c][0], "availability": level} for c in centers]
        if versions:
            shown["cudaVersions"] = [{"version": version, "available": level != "NONE"} for version in versions]
        return shown


def _country(center: str) -> str:
    return center.split("-")[1] if center.startswith("EU-") else center.split("-")[0]


def _among(name: str, given: list[str], known: tuple[str, ...]) -> None:
    for value in given:
        if value not in known:
            raise Problem(422, "Request validation failed.", [f"query.{name}: value must be one of {', '.join(known)}"])


def _whole(name: str, text: str) -> int:
    if not text.isdigit() or text == "0":
        raise Problem(422, "Request validation failed.", [f"query.{name}: must be an integer of at least 1"])
    return int(text)


def at_least(version: str, floor: str) -> bool:
    """Compare CUDA versions as numbers: 12.11 is above 12.2."""
    numbers = [[int(part) for part in text.split(".")] for text in (version, floor)]
    return numbers[0] >= numbers[1]
