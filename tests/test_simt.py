"""CUDA kernels run without a GPU, and the harness that runs them: right ones pass, wrong ones are told."""

import platform
import re
from pathlib import Path

import pytest
from programs import build, require, run, start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="fibers for x86-64 Linux only"
    ),
]

#: What the watched program says of each kernel of tests/simt/tests/races.cpp. Capitals: PATTERNS.
RACES = {
    "reverse_without_barrier": "T(0): reads 4 bytes at offset 252 of TILE at LINE, UNWRITTEN",
    "overwrite_without_barrier": "T(32): RACE: reads 4 bytes at offset 124 of TILE at LINE, "
    "which B(0), T(31) writes at LINE, and nothing orders the two",
    "overwrite_what_all_read": "T(40): RACE: writes 4 bytes at offset 0 of FIRST at LINE, "
    "which B(0), T(0) reads at LINE",
    "overwrite_what_warps_have_read": "T(0): RACE: writes 4 bytes at offset 0 of FIRST at LINE, "
    "which B(0), T(32) reads at LINE",
    "rotate_without_syncwarp": "T(0): reads 4 bytes at offset 4 of DYNAMIC at LINE, UNWRITTEN",
    "rotate_after_shuffle": "T(0): RACE: reads 4 bytes at offset 4 of DYNAMIC at LINE, "
    "which B(0), T(1) writes at LINE",
    "rotate_after_half_a_syncwarp": "T(15): RACE: reads 4 bytes at offset 64 of DYNAMIC at LINE, "
    "which B(0), T(16) writes at LINE",
    "exchange_between_warps_with_syncwarp": "T(0): RACE: reads 4 bytes at offset 252 of TILE at LINE, "
    "which B(0), T(63) writes at LINE",
    "blocks_write_one_element": "B(1), T(0): RACE: writes 4 bytes at offset 0 of OUT at LINE, "
    "which B(0), T(0) writes at LINE",
    "blocks_hand_over": "B(1), T(0): RACE: reads 4 bytes at offset 0 of OUT at LINE, "
    "which B(0), T(0) writes at LINE",
    "blocks_read_what_one_writes": "B(2), T(1): RACE: writes 4 bytes at offset 4 of IN at LINE, "
    "which B(0), T(1) reads at LINE",
    "add_without_atomic": "T(1): RACE: reads 4 bytes at offset 0 of OUT at LINE, "
    "which B(0), T(0) writes at LINE",
    "add_and_read": "T(1): RACE: changes atomically 4 bytes at offset 0 of OUT at LINE, "
    "which B(0), T(0) reads at LINE",
    "add_before_it_is_set": "T(1): RACE: changes atomically 4 bytes at offset 0 of IN at LINE, "
    "which B(0), T(0) writes at LINE",
    "read_while_a_warp_adds": "T(40): RACE: reads 4 bytes at offset 0 of NAME::sum at LINE, "
    "which B(0), T(0) changes atomically at LINE",
    "read_when_the_own_warp_has_added": "T(0): RACE: reads 4 bytes at offset 0 of NAME::sum at LINE, "
    "which B(0), T(32) changes atomically at LINE",
    "set_while_others_add": "T(40): RACE: writes 4 bytes at offset 0 of OUT at LINE, "
    "which B(0), T(0) changes atomically at LINE",
}
#: The same for tests/simt/tests/faults.cpp.
FAULTS = {
    "half_the_block_waits": "T(0): waits in __syncthreads (LINE) for T(32), LEFT",
    "leave_while_others_wait": "T(0): waits in __syncthreads (LINE) for T(63), LEFT",
    "two_barriers": "T(32): waits in __syncthreads (LINE) for T(0), which waits in __syncthreads (LINE)",
    "shuffle_in_half_a_warp": "T(0): waits in __shfl_xor_sync with mask 0xffffffff (LINE) "
    "for T(16), LEFT",
    "shuffle_against_barrier": "T(0): waits in __shfl_xor_sync with mask 0xffffffff (LINE) "
    "for T(3), which waits in __syncthreads (LINE)",
    "shuffle_with_two_masks": "T(0): waits in __shfl_xor_sync with mask 0x0000ffff (LINE) "
    "for T(9), which waits in __shfl_xor_sync with mask 0x0000ff00 (LINE)",
    "shuffle_from_outside_the_mask": "T(15): __shfl_down_sync reads lane 16, which its mask leaves out",
    "shuffle_without_oneself": "T(16): __shfl_sync: the mask leaves out the calling lane (LINE)",
    "shuffle_beyond_the_block": "T(32): __shfl_sync: the mask names lanes beyond the end of the block (LINE)",
    "shuffle_in_threes": "T(0): __shfl_down_sync: the width must be a power of two, at most 32 (LINE)",
    "wait_in_a_loop": "T(0): waits for something that no other thread can do meanwhile, at LINE",
    "trap": "T(7): __trap: called (LINE)",
    "read_past_the_end": "T(63): reads 4 bytes at offset 256 of IN at LINE, which has 256 bytes",
    "read_before_the_start": "T(0): reads 4 bytes at offset -4 of IN at LINE, which has 256 bytes",
    "write_past_the_end": "T(63): writes 4 bytes at offset 256 of OUT at LINE, which has 256 bytes",
    "read_half_past_the_end": "T(0): reads 8 bytes at offset 248 of IN at LINE, which has 252 bytes",
    "write_past_dynamic_shared": "T(63): writes 4 bytes at offset 252 of DYNAMIC at LINE, "
    "which has 252 bytes",
    "write_to_host": "T(0): writes 4 bytes of memory that is not the device's at LINE",
    "read_the_stack_of_another": "T(1): reads 4 bytes of the stack of T(0) at LINE",
    "read_misaligned": "T(0): reads 16 bytes at offset 4 of IN at LINE, which is not aligned to its size",
    "read_unwritten_shared": "T(63): reads 4 bytes at offset 252 of TILE at LINE, UNWRITTEN",
    "read_shared_of_last_block": "B(1), T(0): reads 4 bytes at offset 0 of DYNAMIC at LINE, "
    "UNWRITTEN",
    "read_unwritten_result": "T(0): reads 4 bytes at offset 0 of OUT at LINE, "
    "UNWRITTEN",
    "add_to_unwritten_result": "T(0): changes atomically 4 bytes at offset 0 of OUT at LINE, "
    "UNWRITTEN",
    "read_result_of_every_second": "buffer 'out': nothing has written the byte at offset 4",
    "block_too_large": "a block has 1 to 1024 threads, at most 64 of them along z; got 32 x 33 x 1",
    "grid_of_nothing": "a grid has 1 to 2147483647 x 65535 x 65535 blocks; got 0 x 1 x 1",
    "grid_too_high": "a grid has 1 to 2147483647 x 65535 x 65535 blocks; got 1 x 65536 x 1",
    "too_much_shared": "49153 bytes of dynamic shared memory, of which 49152 are allowed",
    "allow_too_much_shared": "232449 bytes of dynamic shared memory; a block has at most 232448",
}
TABLES = {"simt_races": RACES, "simt_faults": FAULTS}
#: From one __shared__ variable into the next is a step within the block's memory; the sanitizer has gaps.
BETWEEN_VARIABLES = ("read_past_shared_variable", "write_past_shared_variable")
#: What the sanitizers and the scheduler see where accesses are not watched.
SANITIZED = {
    **{name: told for name, told in FAULTS.items() if "waits" in told or "__shfl" in told or "much" in name},
    **dict.fromkeys(BETWEEN_VARIABLES, "insufficient space for an object of type"),
    "read_past_the_end": "heap-buffer-overflow",
    "read_before_the_start": "heap-buffer-overflow",
    "write_past_the_end": "heap-buffer-overflow",
    "read_half_past_the_end": "heap-buffer-overflow",
    "write_past_dynamic_shared": "heap-buffer-overflow",
    "read_misaligned": "misaligned address",
}
PATTERNS = {
    r"B\((\d+)\)": r"block (\1, 0, 0)",
    r"T\((\d+)\)": r"thread (\1, 0, 0)",
    "RACE": "race",
    "TILE": "NAME::tile",
    "FIRST": "NAME::first",
    "DYNAMIC": "the dynamic shared memory",
    r"\bIN\b": "buffer 'in'",
    r"\bOUT\b": "buffer 'out'",
    "UNWRITTEN": "which nothing has written yet",
    "LEFT": "which has left the kernel",
}


def expect(text: str) -> re.Pattern[str]:
    """Compile the words of a table."""
    for word, meaning in PATTERNS.items():
        text = re.sub(word, meaning, text)
    return re.compile(re.escape(text).replace("LINE", r"\w+\.cpp:\d+").replace("NAME", r"[^\n]*"))


@pytest.fixture(scope="module")
def programs(source_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("cmake", "addr2line")
    target = tmp_path_factory.mktemp("simt")
    build(source_root / "tests/simt", target)
    return target


@pytest.mark.parametrize("order", ["forward", "reverse", "1", "2"])
@pytest.mark.parametrize("program", ["simt_good", "simt_traffic", "simt_types", "lltm"])
@pytest.mark.parametrize("kind", ["watched", "sanitized"])
def test_kernels_that_are_right(programs: Path, program: str, kind: str, order: str) -> None:
    said = run(programs / f"{program}_{kind}", "--order", order)
    assert re.fullmatch(r"\d+ passed, 0 failed\n", said)


@pytest.mark.parametrize(
    ("program", "case", "told"),
    [(program, case, told) for program, table in TABLES.items() for case, told in table.items()],
)
def test_a_fault_is_told(programs: Path, program: str, case: str, told: str) -> None:
    done = start(programs / f"{program}_watched", case)
    assert done.returncode == 1
    assert done.stdout.startswith(f"FAILED {case}: ")
    assert expect(told).search(done.stdout), done.stdout


@pytest.mark.parametrize(("case", "told"), SANITIZED.items(), ids=SANITIZED.keys())
def test_a_fault_is_told_under_sanitizers(programs: Path, case: str, told: str) -> None:
    done = start(programs / "simt_faults_sanitized", case)
    assert done.returncode != 0
    assert expect(told).search(done.stdout + done.stderr), done.stdout + done.stderr


@pytest.mark.parametrize("order", ["reverse", "1"])
@pytest.mark.parametrize(("program", "table"), TABLES.items(), ids=TABLES.keys())
def test_every_fault_is_found_in_every_order(
    programs: Path, program: str, table: dict[str, str], order: str
) -> None:
    done = start(programs / f"{program}_watched", "--order", order, *table)
    assert (done.returncode, done.stdout.count("FAILED")) == (1, len(table)), done.stdout


def test_every_fault_is_in_a_table(programs: Path) -> None:
    said = [start(programs / f"{program}_watched").stdout for program in TABLES]
    counted = [int(number) for text in said for number in re.findall(r"\d+(?= passed, | failed\n)", text)]
    assert sum(counted) == len(RACES) + len(FAULTS) + len(BETWEEN_VARIABLES)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("no_such_case",), "FAILED: not every name is a case"),
        (("--order", "down"), "--order takes forward, reverse or a number to shuffle with, got 'down'"),
    ],
)
def test_a_program_that_is_called_wrongly_says_so(programs: Path, words: tuple[str, ...], told: str) -> None:
    done = start(programs / "simt_good_watched", *words)
    assert done.returncode == 1
    assert told in done.stdout
