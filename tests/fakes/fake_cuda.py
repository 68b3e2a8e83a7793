"""A little real work on a real GPU, by the driver's own library: memory that is held, and fills that take power."""

from __future__ import annotations

import ctypes
import time


class Card:
    """The first device that CUDA shows to this process. Raises OSError or RuntimeError where there is none."""

    def __init__(self, hold_mib: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        self.visible = count.value
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        raw = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(raw), device)
        text = bytes(raw).hex()
        self.uuid = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._call("cuCtxSetCurrent", self._context)
        self._bytes = hold_mib << 20
        self._memory = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(self._bytes))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def work(self, seconds: float) -> int:
        """Fill the held memory again and again. Returns how often. May be called from any thread."""
        self._call("cuCtxSetCurrent", self._context)
        rounds, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            self._call("cuMemsetD8_v2", self._memory, ctypes.c_ubyte(rounds % 256), ctypes.c_size_t(self._bytes))
            self._call("cuCtxSynchronize")
            rounds += 1
        return rounds
