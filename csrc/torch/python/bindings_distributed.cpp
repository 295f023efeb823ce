// SPDX-License-Identifier: Apache-2.0
#include "torch/python/bindings_distributed.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "torch/distributed/backend.h"
#include "torch/distributed/cpu_backends/shared_memory_backend.h"
#include "torch/distributed/cpu_backends/transport_backend.h"
#include "torch/python/binding_helpers.h"

namespace outboard::distributed {
namespace {

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& backend, const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout, std::vector<uint64_t> global_ranks,
                                               const MakeCpuBackend& make_cpu_backend, bool by_driver) {
  const MakeCpuBackend make = [make_cpu_backend](const auto& for_store, int own, int ranks, auto longest,
                                                 const auto& in_world) {
    return SharedMemoryBackend::over(make_cpu_backend(for_store, own, ranks, longest, in_world), longest);
  };
  auto cpu_backend = make(store, rank, size, timeout, global_ranks);
  auto driver = by_driver ? DriverTransport::make(store, *cpu_backend, timeout) : nullptr;
  return c10::make_intrusive<DeviceBackend>(Group{backend, name, rank, size, timeout, std::move(global_ranks)},
                                            std::move(cpu_backend), make, std::move(driver));
}

}  // namespace

void bind(pybind11::module_& m) {
  namespace py = pybind11;
  if (py::detail::get_type_info(typeid(c10d::Backend)) == nullptr) return;  // a PyTorch without torch.distributed
  py::class_<DeviceOptions, c10d::Backend::Options, c10::intrusive_ptr<DeviceOptions>>(
      m, "ProcessGroupOptions", "Options of a process group's backend.")
      .def("__copy__", [](const DeviceOptions& self) { return c10::make_intrusive<DeviceOptions>(self); })
      .def("__deepcopy__",
           [](const DeviceOptions& self, const py::dict&) { return c10::make_intrusive<DeviceOptions>(self); });
  py::class_<DeviceBackend, c10d::Backend, c10::intrusive_ptr<DeviceBackend>>(
      m, "ProcessGroupBackend", "The backend of a process group for tensors of the device.")
      .def_property_readonly("options", &DeviceBackend::options);
  aten::bindings::define(
      m, "process_group_backend",
      "Makes the backend of a process group for tensors of the device. The function makes the one "
      "for CPU tensors under it: store, rank, size, timeout, and the ranks of the world it has. The last "
      "argument: whether collectives of the device's driver are used where it has some.",
      &make_backend);
  aten::bindings::define_for_all(
      m, "leave_process_groups",
      "For a process that exits: collectives of a driver's that are under way are given a second, "
      "and aborted then.",
      [] { DriverTransport::leave_all(); });
  aten::bindings::define(
      m, "transport_backend", "A backend for CPU tensors that an object of Python's carries out, under a name.",
      [](std::string name, py::object transport, int rank, int size, std::chrono::milliseconds timeout) {
        const c10::intrusive_ptr<c10d::Backend> made =
            c10::make_intrusive<TransportBackend>(std::move(name), std::move(transport), rank, size, timeout);
        return made;
      });
}

}  // namespace outboard::distributed
