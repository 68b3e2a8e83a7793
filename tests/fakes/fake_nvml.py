"""NVML as a plain object: a list of cards, each query answered from a dict, or refused as some drivers refuse it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """Stands for every error of the real library."""


class FakeNvml:
    """`cards` are dicts of readings; a reading that is missing raises, as NotSupported does."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 2

    def __init__(self, *cards: dict[str, Any], usable: bool = True, driver: str = "580.1", cuda: int = 13010) -> None:
        self.cards, self.usable, self.driver, self.cuda = cards, usable, driver, cuda
        self.open = 0
        self.asked: list[str] = []

    def nvmlInit(self) -> None:
        if not self.usable:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, Any]:
        for card in self.cards:
            if card.get("uuid") == uuid:
                return card
        raise NVMLError("Not Found")

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def _get(self, card: dict[str, Any], name: str) -> Any:
        self.asked.append(name)
        if card.get(name) is None:
            raise NVMLError(f"Not Supported: {name}")
        return card[name]

    def nvmlDeviceGetUUID(self, card: dict[str, Any]) -> Any:
        return self._get(card, "uuid")

    def nvmlDeviceGetName(self, card: dict[str, Any]) -> Any:
        return self._get(card, "name")

    def nvmlDeviceGetMemoryInfo(self, card: dict[str, Any], version: int = 1) -> SimpleNamespace:
        """The second form leaves out what the driver reserves; an old driver does not know it."""
        if version == self.nvmlMemory_v2 and card.get("old_driver"):
            raise NVMLError("Function Not Found")
        total, reserved = self._get(card, "memory_mib") << 20, card.get("reserved_mib", 0) << 20
        used = card.get("used_mib", 0) << 20
        return SimpleNamespace(total=total, used=used if version == self.nvmlMemory_v2 else used + reserved)

    def nvmlDeviceGetPowerUsage(self, card: dict[str, Any]) -> Any:
        return self._get(card, "power_mw")

    def nvmlDeviceGetTotalEnergyConsumption(self, card: dict[str, Any]) -> Any:
        return self._get(card, "energy_mj")

    def nvmlDeviceGetTemperature(self, card: dict[str, Any], sensor: int) -> Any:
        return self._get(card, "temperature")

    def nvmlDeviceGetClockInfo(self, card: dict[str, Any], clock: int) -> Any:
        return self._get(card, "sm_clock" if clock == self.NVML_CLOCK_SM else "memory_clock")

    def nvmlDeviceGetMaxClockInfo(self, card: dict[str, Any], clock: int) -> Any:
        return self._get(card, "max_sm_clock" if clock == self.NVML_CLOCK_SM else "max_memory_clock")

    def nvmlDeviceGetUtilizationRates(self, card: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._get(card, "utilisation"))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: dict[str, Any]) -> Any:
        return self._get(card, "reasons")

    def nvmlDeviceGetEnforcedPowerLimit(self, card: dict[str, Any]) -> Any:
        return self._get(card, "limit_mw")

    def nvmlDeviceGetPowerManagementDefaultLimit(self, card: dict[str, Any]) -> Any:
        return self._get(card, "default_limit_mw")

    def nvmlDeviceGetPciInfo(self, card: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(busId=self._get(card, "bus"))

    def nvmlDeviceGetPersistenceMode(self, card: dict[str, Any]) -> Any:
        return self._get(card, "persistence")

    def nvmlDeviceGetEccMode(self, card: dict[str, Any]) -> list[Any]:
        return [self._get(card, "ecc"), 0]


BIG: dict[str, Any] = {
    "uuid": "GPU-bbbb0000-1111",
    "name": "Big Card",
    "memory_mib": 24576,
    "used_mib": 500,
    "power_mw": 300_000,
    "energy_mj": 1_000_000,
    "temperature": 61,
    "sm_clock": 1900,
    "memory_clock": 9500,
    "max_sm_clock": 2100,
    "max_memory_clock": 9751,
    "utilisation": 97,
    "reasons": 0,
    "limit_mw": 280_000,
    "default_limit_mw": 350_000,
    "bus": b"00000000:65:00.0",
    "persistence": 1,
}
SMALL: dict[str, Any] = {"uuid": b"GPU-aaaa0000-2222", "name": b"Small Card", "memory_mib": 8192}
