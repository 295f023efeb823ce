#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel, installs it into a new virtual environment, and uses the device there without a compiler in sight.
# usage: tools/check_wheel.sh [PYTHON]    PYTHON has the build requirements and torch (default: .venv/bin/python)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:-.venv/bin/python}
work=$(mktemp -d)
everything=$PATH
trap 'PATH=$everything rm -rf "$work"' EXIT

echo "== building the wheel"
bin=$(dirname "$(realpath -s "$python")")
PATH="$bin:$PATH" "$python" -m pip --disable-pip-version-check wheel -q --no-deps --no-build-isolation -w "$work" .
wheel=$(echo "$work"/outboard-*.whl)
"$python" -m zipfile -l "$wheel" | awk '{print $1}' >"$work/contents"
for needed in 'outboard/_C\..*\.so' 'outboard/drivers/liboutboard_opencl\.so' 'outboard/drivers/liboutboard_sim\.so' \
  'outboard/lib/liboutboard_runner\.so' 'outboard/lib/cmake/outboard/outboard-config\.cmake' \
  'outboard/include/outboard/runner\.h' 'outboard/bin/outboard-run' 'outboard/bin/outboard-build' 'outboard/py\.typed' 'outboard/cli/doctor\.py' \
  'outboard-.*/entry_points\.txt' 'outboard-.*/licenses/LICENSE'; do
  grep -qx "$needed" "$work/contents" || { echo "the wheel lacks $needed"; exit 1; }
done

echo "== installing it into a new environment"
"$python" -m venv "$work/venv"
torch=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))')
"$work/venv/bin/pip" --disable-pip-version-check install -q "torch==$torch" ||
  "$work/venv/bin/pip" --disable-pip-version-check install -q "torch==$torch" \
    --extra-index-url https://download.pytorch.org/whl/cpu
"$work/venv/bin/pip" --disable-pip-version-check install -q "$wheel"

echo "== using it, with nothing but the environment on PATH"
cd "$work"
export PATH="$work/venv/bin" OUTBOARD_CACHE_DIR="$work/cache"
unset PYTHONPATH
"$work/venv/bin/outboard" doctor
"$work/venv/bin/python" - <<'END'
import torch

name = torch._C._get_privateuse1_backend_name()
x = torch.ones(3, device=name)
print(x, x * 2 + 1)
assert (x * 2 + 1).tolist() == [3, 3, 3]
assert getattr(torch, name).fallbacks() == {}, getattr(torch, name).fallbacks()

import subprocess

import outboard

outboard.export(torch.nn.Linear(4, 2).to(name), torch.ones(3, 4, device=name), path="model.obm")
print(subprocess.check_output([f"{outboard.cmake_prefix()}/bin/outboard-run", "model.obm"], text=True), end="")
END
echo "the wheel works"
