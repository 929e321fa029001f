"""NVIDIA's own view of the GPU code in a library, asked of cuobjdump."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from extforge.audit.binaries import DeviceImage, SecondOpinion

LISTED = re.compile(r"^(?:ELF|PTX) file\s+\d+: \S*?\.sm_(\d+)(\d)([af]?)\.(cubin|ptx)$", re.MULTILINE)
KINDS = {"cubin": "sass", "ptx": "ptx"}
SECONDS = 120


def ask_cuobjdump(program: Path, library: Path) -> SecondOpinion:
    """The images that cuobjdump lists, relocatable device code included."""
    images: set[DeviceImage] = set()
    for listing in ("--list-elf", "--list-ptx"):
        command = [str(program), "-all", listing, str(library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return SecondOpinion(frozenset(), f"cuobjdump could not be asked: {error}")
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            return SecondOpinion(frozenset(), f"cuobjdump failed: {said[-1] if said else done.returncode}")
        images |= {DeviceImage(KINDS[m[4]], f"{m[1]}.{m[2]}{m[3]}") for m in LISTED.finditer(done.stdout)}
    return SecondOpinion(frozenset(images))
