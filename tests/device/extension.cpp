// SPDX-License-Identifier: Apache-2.0
// An extension of PyTorch against outboard/extension.h, which links nothing of Outboard's: compiled by
// test_extension.py.
#include <ATen/ops/empty_like.h>
#include <outboard/extension.h>
#include <torch/library.h>

namespace {

/// A copy by the driver's own function.
at::Tensor copied(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  const outboard::Borrow borrow({x}, {y});
  const ob_status status = borrow.driver().copy(borrow.stream(), OB_DEVICE_TO_DEVICE, borrow.address(y),
                                                borrow.address(x), static_cast<uint64_t>(x.nbytes()));
  TORCH_CHECK(status == OB_OK, borrow.driver().last_error());
  return y;
}

TORCH_LIBRARY(outboard_extension_test, m) { m.def("copied(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(outboard_extension_test, PrivateUse1, m) { m.impl("copied", copied); }
TORCH_LIBRARY_IMPL(outboard_extension_test, CPU, m) { m.impl("copied", copied); }

}  // namespace
