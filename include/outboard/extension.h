// SPDX-License-Identifier: Apache-2.0
//
// For C++ extensions of PyTorch (torch.utils.cpp_extension): the memory of a device's tensors, and its stream.
//
//   #include <outboard/extension.h>
//
//   at::Tensor scale(const at::Tensor& x, double factor) {
//     at::Tensor y = at::empty_like(x);
//     const outboard::Borrow borrow({x}, {y});
//     check(vendor_scale(borrow.stream(), borrow.address(x), borrow.address(y), x.numel(), factor));
//     return y;
//   }
//
// An extension links nothing of Outboard's: it finds it through PyTorch's dispatcher. `outboard.get_include()` is the
// directory for the compiler.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>

#include "outboard/driver.h"

namespace outboard {
namespace extension {

/// What extensions call. Fields are only appended; one is there if it lies within `struct_size`.
struct Functions {
  size_t struct_size;
  void* (*begin)(const at::Tensor* read, size_t read_count, const at::Tensor* written, size_t written_count);
  void (*end)(void* borrow);
  ob_stream (*stream)(void* borrow);
  ob_ptr (*address)(const void* borrow, const at::Tensor& tensor);
  ob_device (*device)(const void* borrow);
  const ob_driver* (*driver)(const void* borrow);
};

/// Outboard's. Throws c10::Error if Outboard is not loaded in this process.
inline const Functions& functions() {
  static const Functions* const found = reinterpret_cast<const Functions*>(
      c10::Dispatcher::singleton().findSchemaOrThrow("outboard::extension_functions", "").typed<int64_t()>().call());
  return *found;
}

}  // namespace extension

/// Tensors of one device, in device memory and in place while the Borrow lives, and the calling thread's current stream
/// of the device, to which somebody else submits work that uses them: behind all work that PyTorch was given before,
/// and before all that it is given afterwards. As `outboard.borrow` in Python, whose documentation says what is
/// refused; here with c10::Error.
class Borrow {
 public:
  /// `read` and `written` may share tensors. Autograd learns that `written` change, as of an operation in place.
  explicit Borrow(at::TensorList read, at::TensorList written = {})
      : borrow_(extension::functions().begin(read.data(), read.size(), written.data(), written.size())) {}
  ~Borrow() { extension::functions().end(borrow_); }
  Borrow(const Borrow&) = delete;
  Borrow& operator=(const Borrow&) = delete;

  /// The driver's stream. All that PyTorch was given for it is in the driver's hands when this returns: ask again for
  /// work that comes behind operators called meanwhile. Throws what such work failed with.
  ob_stream stream() const { return extension::functions().stream(borrow_); }
  /// Where element 0 of a borrowed tensor is; 0 of a tensor without elements. Of a device whose memory the host cannot
  /// address, nothing for the host to look at. Throws c10::Error for a tensor that is not borrowed.
  ob_ptr address(const at::Tensor& tensor) const { return extension::functions().address(borrow_, tensor); }
  ob_device device() const { return extension::functions().device(borrow_); }
  /// The driver, to which stream and addresses belong.
  const ob_driver& driver() const { return *extension::functions().driver(borrow_); }

 private:
  void* const borrow_;
};

}  // namespace outboard
