"""Does the package say the same thing everywhere, and does it hold what it lists?"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from extforge.audit.model import Context, Entry, Format, Kind, Observation, Package
from extforge.audit.rules.labels import listed

RECORDS = ("RECORD", "RECORD.jws", "RECORD.p7s")
LICENSE_FILE = re.compile(r"(^|/)(licen[cs]es?|copying|copyright|notice|unlicense)", re.IGNORECASE)
CONDA_ROOTS = frozenset(
    [
        "bin",
        "sbin",
        "lib",
        "lib64",
        "libexec",
        "include",
        "share",
        "etc",
        "ssl",
        "var",
        "man",
        "doc",
        "site-packages",
        "python-scripts",
        "Scripts",
        "Library",
        "DLLs",
        "Lib",
        "Menu",
        "targets",
        "nvvm",
        "compute-sanitizer",
        "extras",
        "fonts",
        "mkspecs",
        "plugins",
        "qml",
        "compiler_compat",
        "x86_64-conda-linux-gnu",
        "aarch64-conda-linux-gnu",
        "powerpc64le-conda-linux-gnu",
    ]
)
WHEEL_SCHEMES = frozenset({"purelib", "platlib", "headers", "scripts", "data"})
MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le", "linux-32": "i386"}
DIST_INFO = re.compile(r"(?:.*/)?site-packages/([^/]+)-([^/-]+)\.dist-info/METADATA")


def contradicting_identities(package: Package, context: Context) -> Iterator[Observation]:
    """M01."""
    stated: dict[str, tuple[str, str]] = {}
    for source, field, value in package.claims.identities:
        first_source, first = stated.setdefault(field, (source, value))
        if not _same(field, first, value, package.claims.format):
            yield Observation(
                source,
                f"{field} {first} ({first_source})",
                f"{field} {value} ({source})",
                f"{field} in {source}",
            )


def _same(field: str, one: str, other: str, package_format: Format) -> bool:
    if field != "version" or package_format is Format.CONDA:
        return one == other
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def contradicting_build_string(package: Package, context: Context) -> Iterator[Observation]:
    """M02."""
    claims = package.claims
    number = re.search(r"_(\d+)$", claims.build)
    if number and claims.build_number is not None and int(number[1]) != claims.build_number:
        yield Observation(
            "info/index.json", f"build {claims.build}", f"build number {claims.build_number}", "build.number"
        )
    stated = re.search(r"h([0-9a-f]{7})(_|$)", claims.build)
    if stated and claims.variant:
        packed = json.dumps(dict(claims.variant), sort_keys=True).encode()
        computed = hashlib.sha1(packed, usedforsecurity=False).hexdigest()[:7]
        if computed != stated[1]:
            yield Observation(
                "info/hash_input.json",
                f"hash {stated[1]} in {claims.build}",
                f"hash {computed}",
                "build.string",
            )


def listed_but_absent(package: Package, context: Context) -> Iterator[Observation]:
    """M03."""
    for path in package.claims.files:
        if path not in package.entries:
            yield Observation(path, "listed among the package's files", "absent", f"the listing of {path}")


def present_but_unlisted(package: Package, context: Context) -> Iterator[Observation]:
    """M04."""
    claims = package.claims
    exempt = {claims.metadata_root + name for name in RECORDS}
    everything = claims.format is Format.WHEEL
    candidates = package.entries.values() if everything else package.payload
    for entry in candidates:
        unlisted = entry.kind is not Kind.DIRECTORY and entry.path not in claims.files
        if unlisted and entry.path not in exempt:
            yield Observation(entry.path, "not listed", f"present, {entry.size} bytes", "the package's files")


def false_sizes_and_digests(package: Package, context: Context) -> Iterator[Observation]:
    """M05."""
    for path, claim in package.claims.files.items():
        entry = package.entries.get(path)
        replaced = package.claims.installed and claim.placeholder
        if entry is None or path not in package.digests or replaced:
            continue
        if claim.size is not None and claim.size != entry.size:
            yield Observation(
                path, f"{claim.size} bytes", f"{entry.size} bytes", f"the recorded size of {path}"
            )
        elif claim.sha256 and claim.sha256 != package.digests[path]:
            yield Observation(
                path, f"SHA-256 {claim.sha256[:16]}...", f"SHA-256 {package.digests[path][:16]}...", f"{path}"
            )


def false_placeholders(package: Package, context: Context) -> Iterator[Observation]:
    """M06. Bytecode names its source by the path at build time, and Python corrects that when it loads it."""
    if package.claims.format is Format.WHEEL or package.claims.installed:
        return
    for path, claim in package.claims.files.items():
        seen = package.prefixes.get(path, frozenset())
        if claim.placeholder and path in package.digests and claim.placeholder not in seen:
            yield Observation(
                path, f"holds the prefix {_short(claim.placeholder)}", "does not", "prefix_detection"
            )
    for path in package.prefixes:
        claimed = package.claims.files.get(path)
        exempt = path.startswith(package.claims.metadata_root) or path.endswith(".pyc")
        if not exempt and not (claimed and claimed.placeholder):
            yield Observation(path, "holds no build prefix", "holds one", "prefix_detection.ignore")


def _short(prefix: str) -> str:
    return prefix if len(prefix) < 60 else prefix[:57] + "..."


def missing_license(package: Package, context: Context) -> Iterator[Observation]:
    """M07."""
    claims = package.claims
    if not claims.license:
        yield Observation(claims.metadata_root, "no licence named", "no licence named", "about.license")
    if not claims.installed and not any(
        _is_license(e, claims.metadata_root) for e in package.entries.values()
    ):
        yield Observation(
            claims.metadata_root,
            f"licence {claims.license or 'unknown'}",
            "no licence text",
            "about.license_file",
        )


def _is_license(entry: Entry, root: str) -> bool:
    return entry.kind is Kind.FILE and entry.path.startswith(root) and bool(LICENSE_FILE.search(entry.path))


def misplaced_files(package: Package, context: Context) -> Iterator[Observation]:
    """M08."""
    claims = package.claims
    for entry in package.payload:
        parts = entry.path.split("/")
        if claims.format is Format.WHEEL:
            scheme = parts[1] if parts[0].endswith(".data") and len(parts) > 2 else ""
            if scheme and scheme not in WHEEL_SCHEMES:
                yield Observation(
                    entry.path, f"one of {', '.join(sorted(WHEEL_SCHEMES))}", scheme, entry.path
                )
        elif (parts[0] not in CONDA_ROOTS or len(parts) == 1) and not claims.installed:
            yield Observation(
                entry.path, "below a shared directory such as lib", f"in {parts[0]}", entry.path
            )


def clobbered_files(package: Package, context: Context) -> Iterator[Observation]:
    """M09. Two builds of one package are never installed together and may share paths."""
    own = {entry.path for entry in package.payload}
    for other in context.companions:
        if other.claims.name <= package.claims.name or other.claims.format is not package.claims.format:
            continue
        shared = sorted(own & {entry.path for entry in other.payload})
        if shared:
            yield Observation(
                shared[0],
                f"installed by {package.source} alone",
                f"{listed(shared)} also in {other.source}",
                shared[0],
            )


def foreign_machines(package: Package, context: Context) -> Iterator[Observation]:
    """M10."""
    valid, claim = _valid_machines(package)
    for path, elf in package.elves.items():
        if valid is not None and elf.machine and elf.machine not in valid:
            yield Observation(path, claim, f"a binary for {elf.machine}", "target_platform")


def _valid_machines(package: Package) -> tuple[frozenset[str] | None, str]:
    claims = package.claims
    if claims.format is Format.CONDA:
        known = claims.subdir in MACHINES or claims.subdir == "noarch"
        valid = frozenset({MACHINES[claims.subdir]} if claims.subdir in MACHINES else ())
        return (valid if known else None), f"subdir {claims.subdir}"
    platforms = sorted({tag.platform for tag in claims.tags})
    machines = frozenset(_machine(tag) for tag in claims.tags) - {""}
    return (machines if platforms else None), f"platform {' '.join(platforms)}"


def _machine(tag: Tag) -> str:
    aliases = {"i686": "i386", "armv6l": "armv7l"}
    match = re.search(r"(x86_64|i686|i386|aarch64|ppc64le|s390x|armv7l|armv6l|riscv64)$", tag.platform)
    return aliases.get(match[1], match[1]) if match else ""


def other_distribution_version(package: Package, context: Context) -> Iterator[Observation]:
    """M11."""
    claims = package.claims
    if claims.format is Format.WHEEL:
        return
    for path in package.entries:
        match = DIST_INFO.fullmatch(path)
        if match is None or canonicalize_name(match[1]) != canonicalize_name(claims.name):
            continue
        if not _same("version", claims.version, match[2], Format.WHEEL):
            yield Observation(path, f"version {claims.version}", f"version {match[2]}", "context.version")


RULES = {
    "M01": contradicting_identities,
    "M02": contradicting_build_string,
    "M03": listed_but_absent,
    "M04": present_but_unlisted,
    "M05": false_sizes_and_digests,
    "M06": false_placeholders,
    "M07": missing_license,
    "M08": misplaced_files,
    "M09": clobbered_files,
    "M10": foreign_machines,
    "M11": other_distribution_version,
}
