#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel, installs it into a new virtual environment, and trains on the device there without a compiler in sight:
# on this machine's devices, and as on a machine without OpenCL. Needs no root.
# usage: tools/check_wheel.sh [PYTHON]    PYTHON has the build requirements and torch (default: .venv/bin/python)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:-.venv/bin/python}
work=$(mktemp -d)
everything=$PATH
trap 'PATH=$everything rm -rf "$work"' EXIT

echo "== building the wheel"
"$python" tools/make_wheel.py --out "$work"
wheel=$(echo "$work"/outboard-*.whl)
[[ $wheel == *+torch2.*-manylinux_2_*.whl ]] || { echo "$wheel is tagged for this very system"; exit 1; }
"$python" -m zipfile -l "$wheel" | awk '{print $1}' >"$work/contents"
for needed in 'outboard/_C\..*\.so' 'outboard/drivers/liboutboard_opencl\.so' 'outboard/drivers/liboutboard_host\.so' \
  'outboard/drivers/liboutboard_cuda\.so' \
  'outboard/drivers/liboutboard_sim\.so' 'outboard/lib/liboutboard_runner\.so' 'outboard/torch-release\.txt' \
  'outboard/plans/shipped' 'outboard/plans/programs' \
  'outboard/lib/cmake/outboard/outboard-config\.cmake' 'outboard/include/outboard/runner\.h' 'outboard/bin/outboard-run' \
  'outboard/bin/outboard-build' 'outboard/py\.typed' 'outboard/cli/doctor\.py' 'outboard-.*/entry_points\.txt' \
  'outboard-.*/licenses/LICENSE'; do
  grep -qx "$needed" "$work/contents" || { echo "the wheel lacks $needed"; exit 1; }
done

echo "== installing it into a new environment"
"$python" -m venv "$work/venv"
torch=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))')
"$work/venv/bin/pip" --disable-pip-version-check install -q "torch==$torch" ||
  "$work/venv/bin/pip" --disable-pip-version-check install -q "torch==$torch" \
    --extra-index-url https://download.pytorch.org/whl/cpu
"$work/venv/bin/pip" --disable-pip-version-check install -q "$wheel[cpu]"

mkdir "$work/vendors"
cat >"$work/use.py" <<'END'
import importlib.metadata
import os
import subprocess

import torch

import outboard

release = ".".join(torch.__version__.split(".")[:2])
assert f"torch=={release}.*" in (importlib.metadata.requires("outboard") or [])
name = torch._C._get_privateuse1_backend_name()
module = getattr(torch, name)
driver = module.get_device_properties(0).driver
print("driver:", driver)
assert driver == os.environ.get("EXPECTED_DRIVER", driver)
x = torch.ones(3, device=name)
model = torch.nn.Linear(4, 2).to(name)
model(torch.randn(4, 4, device=name)).sum().backward()
assert module.compile_stats()["compiled"] == 0, module.compile_stats()
print(x, x * 2 + 1)
assert (x * 2 + 1).tolist() == [3, 3, 3]
assert module.fallbacks() == {}, module.fallbacks()

optimizer, data, losses = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 4, device=name), []
for _ in range(3):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[0] > losses[1] > losses[2], losses

outboard.export(torch.nn.Linear(4, 2).to(name), torch.ones(3, 4, device=name), path="model.obm")
if driver == "opencl":
    print(subprocess.check_output([f"{outboard.cmake_prefix()}/bin/outboard-run", "model.obm"], text=True), end="")
END

cd "$work"
export PATH="$work/venv/bin" OUTBOARD_CACHE_DIR="$work/cache"
unset PYTHONPATH OUTBOARD_DRIVER OUTBOARD_HOST_COMPILER
echo "== using it, with nothing but the environment on PATH"
outboard doctor
python use.py
echo "== using it without OpenCL"
export OCL_ICD_VENDORS="$work/vendors" EXPECTED_DRIVER=host
outboard doctor
python use.py
echo "the wheel works"
