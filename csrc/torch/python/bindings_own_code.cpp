// SPDX-License-Identifier: Apache-2.0
#include "torch/python/bindings_own_code.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/driver_call.h"
#include "runtime/programs/program_cache.h"
#include "torch/bridge/borrowing.h"
#include "torch/python/binding_helpers.h"

namespace py = pybind11;

namespace outboard::aten {
namespace {

using bindings::checked;
using bindings::define;
using bindings::define_blocking;

/// A kernel that the program brings, of one device. When that is reset, it is made again.
struct OwnKernel {
  std::function<KernelUse(Device&)> make;
  Device* target;
  KernelUse kernel;
};

OwnKernel own_kernel(c10::DeviceIndex index, std::function<KernelUse(Device&)> make) {
  Device& target = device(index);
  KernelUse kernel = translate_errors([&] { return make(target); });
  return {std::move(make), &target, std::move(kernel)};
}

/// An argument: a tensor, the bytes of a number, or None, a pointer to nothing.
using OwnArgument = std::variant<std::monostate, std::string, at::Tensor>;

/// The same in the form that a caller of Python's has.
OwnArgument argument_of(py::handle value) {
  if (value.is_none()) return {};
  if (py::isinstance<py::bytes>(value)) return value.cast<std::string>();
  return value.cast<at::Tensor>();
}

template <typename Word>
void set_number(outboard::Arguments& arguments, size_t number, const std::string& bytes) {
  Word word = 0;
  std::memcpy(&word, bytes.data(), sizeof(word));
  arguments.set(number, word);
}

void set_number(outboard::Arguments& arguments, size_t number, const std::string& bytes) {
  switch (bytes.size()) {
    case 1:
      return set_number<uint8_t>(arguments, number, bytes);
    case 2:
      return set_number<uint16_t>(arguments, number, bytes);
    case 4:
      return set_number<uint32_t>(arguments, number, bytes);
    case 8:
      return set_number<uint64_t>(arguments, number, bytes);
    default:
      TORCH_CHECK_VALUE(false, "Argument ", number, " has ", bytes.size(), " bytes: numbers have 1, 2, 4 or 8");
  }
}

ob_ptr pointer_to(const at::Tensor& tensor, Work& work) {
  const TensorBinding binding = plain_binding_of(tensor);
  const int index = work.stream().device().index();
  TORCH_CHECK(tensor.device().index() == index, "Expected all tensors to be on the same device, but found ",
              torch_device(index), " and ", tensor.device());
  if (tensor.numel() == 0) return 0;
  return work.resolve(*binding.allocation) + static_cast<uint64_t>(binding.storage_offset) * tensor.itemsize();
}

/// Launches on the calling thread's current stream of the kernel's device; recorded while a graph is captured.
void launch_own(const OwnKernel& own, const std::vector<OwnArgument>& given, const std::array<uint64_t, 3>& groups,
                const std::array<uint32_t, 3>& group) {
  translate_errors([&] { own.kernel->get(); });  // what is wrong with the program is told here, not by a later call
  if (groups[0] * groups[1] * groups[2] == 0) return;
  Launch launch;
  launch.kernel = &*own.kernel;
  for (size_t d = 0; d < 3; ++d) {
    TORCH_CHECK_VALUE(group[d] != 0, "A work-group needs an item in each dimension");
    launch.local[d] = group[d];
    launch.global[d] = groups[d] * group[d];
  }
  launch.arguments = outboard::Arguments(given.size());
  translate_errors([&] {
    own.kernel->check_group(launch.local);
    Work work(current_stream(static_cast<c10::DeviceIndex>(own.target->index())));
    refuse_if_unusable(own.target->driver());  // the stream may be its successor's
    for (size_t i = 0; i < given.size(); ++i) {
      if (const auto* bytes = std::get_if<std::string>(&given[i])) {
        set_number(launch.arguments, i, *bytes);
      } else {
        const auto* tensor = std::get_if<at::Tensor>(&given[i]);
        launch.arguments.set_pointer(i, tensor == nullptr ? 0 : pointer_to(*tensor, work));
      }
    }
    work.stream().launch(launch);
  });
}

}  // namespace

void bind_own_code(py::module_& m) {
  py::class_<Borrowed, std::shared_ptr<Borrowed>>(m, "Borrowed", "Tensors in the hands of other code.")
      .def("end", &Borrowed::end, "Gives them back.", py::call_guard<py::gil_scoped_release>())
      .def("address", torch::wrap_pybind_function_no_gil(&Borrowed::address), "Where element 0 of a tensor is.")
      .def("stream", torch::wrap_pybind_function_no_gil([](Borrowed& borrowed) {
             return reinterpret_cast<uint64_t>(borrowed.stream());
           }),
           "The driver's stream, behind everything that it was given.")
      .def_property_readonly("device", [](const Borrowed& borrowed) { return borrowed.device().index(); })
      .def_property_readonly(
          "device_handle",
          [](const Borrowed& borrowed) { return reinterpret_cast<uint64_t>(borrowed.device().handle()); })
      .def_property_readonly("driver", [](const Borrowed& borrowed) {
        return reinterpret_cast<uint64_t>(static_cast<const ob_driver*>(&borrowed.device().driver()));
      });
  define_blocking(m, "borrow", "Borrows tensors to read and to write.",
                  [](const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written) {
                    return std::make_shared<Borrowed>(read, written);
                  });

  py::class_<OwnKernel>(m, "OwnKernel", "A kernel that the program brings.")
      .def("binary", torch::wrap_pybind_function([](OwnKernel& own) {
             std::string binary;
             {
               const py::gil_scoped_release no_gil;
               binary = translate_errors([&] { return own.kernel->binary(); });
             }
             return py::bytes(binary);
           }),
           "Its program, as the driver loads it.");
  define_blocking(
      m, "own_kernel", "A kernel from source: built when it is first needed.",
      [](int64_t index, const std::string& source, const std::string& options, const std::string& entry) {
        return std::make_unique<OwnKernel>(own_kernel(checked(index), [source, options, entry](Device& target) {
          return target.programs().kernel(source, options, entry);
        }));
      });
  define(m, "own_binary_kernel", "A kernel of a program that is there as bytes, which the driver loads.",
         [](int64_t index, const py::bytes& binary, const std::string& entry) {
           const std::string bytes = binary;
           return std::make_unique<OwnKernel>(own_kernel(
               checked(index), [bytes, entry](Device& target) { return target.programs().kernel_of(bytes, entry); }));
         });
  define(m, "launch_own", "Launches such a kernel, in stream order.",
         [](OwnKernel& own, const py::sequence& arguments, const std::array<uint64_t, 3>& groups,
            const std::array<uint32_t, 3>& group) {
           std::vector<OwnArgument> given;
           for (const py::handle value : arguments) given.push_back(argument_of(value));
           if (own.target->was_reset()) {
             own = own_kernel(static_cast<c10::DeviceIndex>(own.target->index()), own.make);
           }
           const OwnKernel used = own;
           const py::gil_scoped_release no_gil;
           launch_own(used, given, groups, group);
         });
}

}  // namespace outboard::aten
