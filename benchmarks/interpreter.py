"""The Python of a measured Postroad: one that was built with profile-guided optimization, which is about 1.1 times as fast.

A Python built from source without `--enable-optimizations`, as pyenv does it, is replaced by the distribution's of the same
version, with the packages of the environment. `POSTROAD_BENCH_PYTHON` chooses another one.
"""

import functools
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.peers.peer import ROOT

_HOME = ROOT / "build" / "bench-python"


def is_optimized() -> bool:
    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")


@functools.cache
def measured_python() -> str:
    chosen = os.environ.get("POSTROAD_BENCH_PYTHON")
    if chosen:
        return chosen
    system = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin")
    if is_optimized() or system is None:
        return sys.executable
    return _with_our_packages(system)


def _with_our_packages(python: str) -> str:
    """An environment of that Python which has the packages, and nats-server, of this one."""
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", _HOME], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = _HOME / "lib" / version / "site-packages" / "environment.pth"
    packages.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    server = Path(sys.executable).with_name("nats-server")
    if server.exists():
        (_HOME / "bin" / "nats-server").symlink_to(server)
    return str(_HOME / "bin" / "python")


def description() -> str:
    python = measured_python()
    if python == sys.executable:
        return f"CPython {platform.python_version()}{'' if is_optimized() else ' without profile-guided optimization'}"
    found = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return f"CPython {found} of the distribution for Postroad, {platform.python_version()} for the load"
