// SPDX-License-Identifier: Apache-2.0
#include "torch/python/bindings_device.h"
#include "torch/python/bindings_distributed.h"
#include "torch/python/bindings_eager.h"
#include "torch/python/bindings_own_code.h"
#include "torch/python/bindings_watch.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ part of Outboard: devices, memory, eager dispatch.";
  outboard::aten::bind_device(m);
  outboard::aten::bind_eager(m);
  outboard::aten::bind_watch(m);
  outboard::aten::bind_own_code(m);
  outboard::distributed::bind(m);
}
