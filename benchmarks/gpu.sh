#!/usr/bin/env bash
# Check and time a built package on a GPU, within four minutes. Nothing is built and nothing installed.
#
#   benchmarks/gpu.sh PACKAGE [PYTHON] [options of gpu.py]
#
# PACKAGE is a directory with the unpacked CUDA package in it (of a .conda file or a wheel), or an environment that holds
# it. PYTHON, "python3" if not given, may be any with torch 2.10 or newer for the same major version of CUDA: it need not be
# the one that the package was built with.
set -euo pipefail

fail() {
  echo "gpu.sh: $*" >&2
  exit 2
}

[ $# -ge 1 ] || fail "which package? gpu.sh PACKAGE [PYTHON] [options of gpu.py]"
package=$1
shift
python=python3
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  python=$1
  shift
fi
[ -d "$package" ] || fail "$package is no directory; unpack the package and name where"
library=$(find -L "$package" -path '*/torch_sparse_ops/libtorch_sparse_ops_cuda.so' -print -quit)
[ -n "$library" ] || fail "no torch_sparse_ops/libtorch_sparse_ops_cuda.so under $package; is it the CUDA build?"
command -v "$python" > /dev/null || fail "$python is no program"

here=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH=$(cd "$(dirname "$library")/.." && pwd)${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
if "$python" -c 'import hypothesis, pytest' 2> /dev/null; then
  timeout 140 "$python" "$here/gpu.py" --seconds 120 "$@"
  timeout 95 "$python" -m pytest -q -m "gpu and not slow" "$here/../tests/test_cuda_ops.py"
else
  timeout 235 "$python" "$here/gpu.py" "$@"
  echo "gpu.sh: $python has no pytest and hypothesis: the tests marked gpu were not run" >&2
fi
