"""Packages, good and bad: libraries by the C compiler, archives by hand."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conda_package_streaming.create import conda_builder

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# linker flags of a library that nothing can be said against
CLEAN = ("-Wl,-z,noexecstack", "-Wl,-z,relro")


@dataclass(frozen=True)
class Library:
    """What a library shall look like; compiled once for each description."""

    uses: tuple[str, ...] = ()
    exports: tuple[str, ...] = ("thing",)
    needed: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    strings: tuple[str, ...] = ()
    run_path: str = ""
    soname: str = ""
    images: tuple[tuple[int, int], ...] = ()
    flags: tuple[str, ...] = CLEAN
    machine: int = 0


@dataclass(frozen=True)
class Spec:
    """A conda package; the defaults make one that passes strictly."""

    name: str = "thing"
    version: str = "1.0"
    build: str = "cpu_0"
    number: int = 0
    subdir: str = "linux-64"
    depends: tuple[str, ...] = ("pytorch >=2.10,<3", "libtorch >=2.10,<3", "__glibc >=2.17,<3.0.a0")
    constrains: tuple[str, ...] = ()
    license: str = "BSD-3-Clause"
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    placeholders: Mapping[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    false_digest: tuple[str, ...] = ()
    variant: Mapping[str, str] = field(default_factory=dict)
    file_name: str = ""
    license_text: bool = True

    @property
    def stem(self) -> str:
        return self.file_name or f"{self.name}-{self.version}-{self.build}"

    def info(self) -> dict[str, bytes]:
        index = {
            "name": self.name,
            "version": self.version,
            "build": self.build,
            "build_number": self.number,
            "subdir": self.subdir,
            "depends": list(self.depends),
            "constrains": list(self.constrains),
            "license": self.license,
        }
        info: dict[str, Any] = {
            "info/index.json": index,
            "info/paths.json": {"paths": self.paths(), "paths_version": 1},
            "info/about.json": {"license": self.license},
            "info/hash_input.json": dict(self.variant),
        }
        packed = {path: json.dumps(value).encode() for path, value in info.items()}
        return packed | ({"info/licenses/LICENSE": b"You may.\n"} if self.license_text else {})

    def paths(self) -> list[dict[str, Any]]:
        listed = []
        for path, content in self.files.items():
            if path in self.unlisted:
                continue
            digest = "0" * 64 if path in self.false_digest else hashlib.sha256(content).hexdigest()
            entry = {"_path": path, "path_type": "hardlink", "sha256": digest, "size_in_bytes": len(content)}
            if path in self.placeholders:
                entry |= {"prefix_placeholder": self.placeholders[path], "file_mode": "binary"}
            listed.append(entry)
        listed += [{"_path": path, "path_type": "softlink"} for path in self.links]
        return listed + [{"_path": path, "path_type": "hardlink"} for path in self.absent]

    def add_to(self, tar: tarfile.TarFile) -> None:
        for path, content in (self.info() | dict(self.files)).items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), self.modes.get(path, 0o644)
            tar.addfile(member, io.BytesIO(content))
        for path, target in self.links.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(member)


def write_conda(spec: Spec, directory: Path) -> Path:
    with conda_builder(spec.stem, directory, compression_level=1) as tar:
        spec.add_to(tar)
    return directory / f"{spec.stem}.conda"


def write_tar_bz2(spec: Spec, directory: Path) -> Path:
    path = directory / f"{spec.stem}.tar.bz2"
    with tarfile.open(path, "w:bz2") as tar:
        spec.add_to(tar)
    return path


def write_directory(spec: Spec, directory: Path) -> Path:
    root = directory / spec.stem
    for path, content in (spec.info() | dict(spec.files)).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        (root / path).chmod(spec.modes.get(path, 0o644))
    for path, target in spec.links.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return root


@dataclass(frozen=True)
class WheelSpec:
    """A wheel; the defaults make one that passes strictly."""

    name: str = "thing"
    version: str = "1.0"
    tag: str = "py3-none-manylinux_2_17_x86_64"
    inner_tag: str = ""
    requires: tuple[str, ...] = ("torch >=2.10",)
    requires_python: str = ">=3.10"
    files: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, directory: Path) -> Path:
        root = f"{self.name}-{self.version}.dist-info"
        metadata = (
            f"Metadata-Version: 2.4\nName: {self.name}\nVersion: {self.version}\nLicense-Expression: MIT\n"
        )
        metadata += f"Requires-Python: {self.requires_python}\n"
        metadata += "".join(f"Requires-Dist: {r}\n" for r in self.requires)
        wheel = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {self.inner_tag or self.tag}\n"
        content = dict(self.files) | {
            f"{root}/METADATA": metadata.encode(),
            f"{root}/WHEEL": wheel.encode(),
            f"{root}/licenses/LICENSE": b"You may.\n",
        }
        record = "".join(f"{p},sha256={_record_digest(c)},{len(c)}\n" for p, c in content.items())
        content[f"{root}/RECORD"] = f"{record}{root}/RECORD,,\n".encode()
        path = directory / f"{self.name}-{self.version}-{self.tag}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
        return path


def _record_digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


INDEX = b'{"name": "a", "version": "1", "build": "0", "build_number": 0, "depends": []}'


def tar(members: list[tarfile.TarInfo | tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def conda(path: Path, payload: bytes, info: bytes | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        packed = tar([("info/index.json", INDEX)]) if info is None else info
        archive.writestr(f"info-{path.stem}.tar.zst", zstd.compress(packed))
        archive.writestr(f"pkg-{path.stem}.tar.zst", zstd.compress(payload))
    return path


def fat_binary(images: tuple[tuple[int, int], ...], flags: int = 0x11) -> bytes:
    """A container of empty images, each (kind, architecture), as fatbin.py documents the format."""
    entries = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, 8, 0, 0, 8, 1, architecture, 0, 0, flags, 0, 0)
        + bytes(8)
        for kind, architecture in images
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


class Compiler:
    """The C compiler, and the libraries made with it so far."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[Library, bytes] = {}

    def __call__(self, library: Library) -> bytes:
        if library not in self._made:
            self._made[library] = self._compile(library)
        return self._made[library]

    def _compile(self, library: Library) -> bytes:
        here = Path(tempfile.mkdtemp(dir=self._directory))
        (here / "code.c").write_text(self._code(library, here))
        flags = [*library.flags, "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-Wl,--build-id=none"]
        flags += [f"-Wl,-soname,{library.soname}"] if library.soname else []
        flags += ["-Wl,--enable-new-dtags", f"-Wl,-rpath,{library.run_path}"] if library.run_path else []
        flags += [str(self._stub(name, library.versions, here)) for name in library.needed]
        out = here / "out.so"
        command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-O1", "-fno-asynchronous-unwind-tables"]
        self._run([*command, "-o", str(out), str(here / "code.c"), *flags])
        content = bytearray(out.read_bytes())
        if library.machine:
            content[18:20] = struct.pack("<H", library.machine)
        return bytes(content)

    def _code(self, library: Library, here: Path) -> str:
        names = [*library.uses, *(f"versioned_{i}" for i in range(len(library.versions)))]
        code = "".join(f"extern void {name}(void);\n" for name in names)
        calls = "".join(f"  {name}();\n" for name in names)
        code += "".join(f"void {name}(void) {{\n{calls}}}\n" for name in library.exports)
        code += "".join(
            f'const char text_{i}[] __attribute__((used, visibility("hidden"))) = {json.dumps(s)};\n'
            for i, s in enumerate(library.strings)
        )
        if library.images:
            (here / "images").write_bytes(fat_binary(library.images))
            section = f'.section .nv_fatbin,\\"a\\"\\n.balign 8\\n.incbin \\"{here}/images\\"\\n.text\\n'
            code += f'__asm__("{section}");\n'
        return code

    def _stub(self, soname: str, versions: tuple[str, ...], here: Path) -> Path:
        """An empty library to link with; it defines the versioned symbols whose version it is to have."""
        code, script = here / f"{soname}.c", here / f"{soname}.map"
        mine = [(i, v) for i, v in enumerate(versions) if _home(v) == soname]
        code.write_text("".join(f"void versioned_{i}(void) {{}}\n" for i, _ in mine))
        script.write_text("".join(f"{v} {{ versioned_{i}; }};\n" for i, v in mine))
        flags = [f"-Wl,--version-script={script}"] if mine else []
        out = here / f"stub-{soname}"
        soname_flag = f"-Wl,-soname,{soname}"
        self._run(["gcc", "-shared", "-fPIC", "-nostdlib", "-o", str(out), soname_flag, *flags, str(code)])
        return out

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


def _home(version: str) -> str:
    return "libc.so.6" if version.startswith("GLIBC_") else "libstdc++.so.6"


def strip(content: bytes, directory: Path) -> bytes:
    """By binutils: everything that is not needed for loading."""
    path = directory / "library.so"
    path.write_bytes(content)
    subprocess.run(["strip", "--strip-all", str(path)], check=True)
    return path.read_bytes()


def without_sections(content: bytes, directory: Path) -> bytes:
    """As sstrip does: no section table at all."""
    changed = bytearray(content)
    changed[40:48] = bytes(8)
    changed[60:64] = bytes(4)
    return bytes(changed)


STABLE = Library(uses=("torch_get_mutable_data_ptr",), needed=("libtorch_cpu.so", "libc.so.6"))
CUDA = Library(
    uses=("torch_get_mutable_data_ptr", "aoti_torch_get_current_cuda_stream", "cudaGetLastError"),
    needed=("libtorch_cpu.so", "libtorch_cuda.so", "libcudart.so.13", "libc.so.6"),
    images=((2, 80), (2, 90), (1, 90)),
)
CUDA_DEPENDS = (
    "pytorch >=2.10,<3",
    "pytorch * cuda*",
    "libtorch >=2.10,<3",
    "__cuda",
    "__glibc >=2.17,<3.0.a0",
    "cuda-version >=13.0,<14",
    "cuda-cudart >=13.0,<14",
)
MODULE = Library(
    uses=("PyModule_Create2", "PyLong_FromLong"), exports=("PyInit_thing",), needed=("libc.so.6",)
)
