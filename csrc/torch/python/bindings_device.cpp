// SPDX-License-Identifier: Apache-2.0
#include "torch/python/bindings_device.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/programs/build_process.h"
#include "runtime/programs/program_cache.h"
#include "runtime/programs/shipped_programs.h"
#include "runtime/streams/library_work.h"
#include "torch/bridge/absent_devices.h"
#include "torch/bridge/backward_nodes.h"
#include "torch/bridge/backward_pass.h"
#include "torch/bridge/deferred.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/generator.h"
#include "torch/bridge/graphs.h"
#include "torch/bridge/hooks.h"
#include "torch/bridge/interruptions.h"
#include "torch/bridge/sync_debug.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/plan_table.h"
#include "torch/python/binding_helpers.h"
#include "torch/python/bindings_memory.h"

namespace py = pybind11;

namespace outboard::aten {
namespace {

using bindings::checked;
using bindings::define;
using bindings::define_blocking;
using bindings::define_for_all;
using c10::DeviceIndex;

py::dict properties_of(DeviceIndex index) {
  const Device& target = device(index);
  const ob_device_properties& from = target.properties();
  py::dict to;
  to["name"] = from.name;
  to["vendor"] = from.vendor;
  to["driver_version"] = from.driver_version;
  to["driver"] = target.driver().name;
  to["dialect"] = from.dialect;
  to["cache_key"] = from.cache_key;
  to["type"] = from.type == OB_DEVICE_CPU ? "cpu" : from.type == OB_DEVICE_GPU ? "gpu" : "accelerator";
  to["compute_units"] = from.compute_units;
  to["max_work_group_size"] = from.max_work_group_size;
  to["sub_group_size"] = from.sub_group_size;
  to["vector_width"] = from.vector_width;
  to["execution"] = from.execution == OB_EXECUTION_VECTOR ? "vector" : "simt";
  to["near_cache"] = from.near_cache;
  to["last_cache"] = from.last_cache;
  to["library"] = from.library;
  to["compiler"] = from.compiler;
  to["static_sizes"] = from.static_sizes != 0;
  to["total_memory"] = from.total_memory;
  to["max_allocation"] = from.max_allocation;
  to["local_memory"] = from.local_memory;
  to["alignment"] = from.alignment;
  to["host_accessible"] = from.host_accessible != 0;
  to["takes_host_memory"] = target.takes_host_memory();
  to["has_fp16"] = from.has_fp16 != 0;
  to["has_fp64"] = from.has_fp64 != 0;
  to["has_int64_atomics"] = from.has_int64_atomics != 0;
  to["matrix_units"] = from.matrix_units != 0;
  return to;
}

std::map<std::string, int64_t> program_statistics(DeviceIndex index) {
  const ProgramCache::Statistics from = device(index).programs().statistics();
  return {{"built", from.built},
          {"elsewhere", from.elsewhere},
          {"loaded_from_disk", from.loaded_from_disk},
          {"waiting", from.waiting},
          {"held", from.held}};
}

py::object default_generator_object(DeviceIndex index) {
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(default_generator(index)));
}

/// How many bytes of each of so many devices will be needed soon; the rest is not known.
using Expectations = std::function<std::vector<uint64_t>(int count)>;

/// Opens the devices, for the first thread that comes. Not while it holds Python's lock: `choice` runs under it, and
/// another thread may wait here.
Runtime& open_runtime(const std::vector<std::string>& paths, const Runtime::Choice& choice,
                      const Runtime::Processor& processor, const Expectations& expectations) {
  static std::once_flag once;
  std::optional<py::gil_scoped_release> released;
  if (PyGILState_Check() != 0) released.emplace();
  std::call_once(once, [&] {
    Runtime& runtime = Runtime::initialize(paths, choice, processor);
    apply_allocator_options(runtime);
    const std::vector<uint64_t> expected = expectations(runtime.device_count());
    for (int index = 0; index < runtime.device_count() && static_cast<size_t>(index) < expected.size(); ++index) {
      if (expected[index] > 0) runtime.device(index).allocator().expect(expected[index]);
    }
  });
  return Runtime::get();
}

/// Adds a value of Python's: None, a number, a tuple of integers, or a tensor as dtype, sizes, strides, and whether it
/// is a result.
void add_operand(LibraryWork& call, py::handle value) {
  if (value.is_none()) return call.add_nothing();
  if (py::isinstance<py::float_>(value)) return call.add_number(value.cast<double>());
  if (py::isinstance<py::int_>(value)) return call.add_integer(value.cast<int64_t>());
  const auto items = value.cast<py::tuple>();
  if (items.size() != 4 || !py::isinstance<py::tuple>(items[1])) {
    return call.add_integers(items.cast<std::vector<int64_t>>());
  }
  call.add_tensor(0, items[0].cast<uint32_t>(), items[1].cast<std::vector<int64_t>>(),
                  items[2].cast<std::vector<int64_t>>(), items[3].cast<bool>());
}

/// Whether the driver's library has a function.
bool library_has(DeviceIndex index, const std::string& name, const py::list& operands) {
  LibraryWork call(name);
  for (const py::handle operand : operands) add_operand(call, operand);
  const py::gil_scoped_release no_gil;
  const Device& target = device(index);
  return translate_errors([&] { return call.find(target.driver(), target.handle()); });
}

/// Makes a device as new. What was on it is lost, work that was only written down for it, too.
void reset_device(DeviceIndex index) {
  try {
    settle();
  } catch (const c10::AcceleratorError&) {
  }
  translate_errors([&] {
    Runtime& runtime = opened_runtime();
    runtime.reset(index);
    apply_allocator_options(runtime);
  });
  PlanTable::instance().forget(index);
}

/// What a device's sensors say; None where it has none.
py::dict sensors_of(DeviceIndex index) {
  const ob_sensors read = translate_errors([&] { return device(index).sensors(); });
  py::dict to;
  const auto put = [&](const char* name, int64_t value) {
    to[name] = value == OB_NOT_KNOWN ? py::object(py::none()) : py::int_(value);
  };
  put("memory_used", read.memory_used);
  put("compute_busy", read.compute_busy);
  put("memory_busy", read.memory_busy);
  put("temperature", read.temperature);
  put("power", read.power);
  put("clock", read.clock);
  return to;
}

/// `WaitsUnnoticed` as a context manager.
struct UnnoticedWaits {
  std::optional<WaitsUnnoticed> scope;
};

}  // namespace

void bind_device(py::module_& m) {
  bind_memory(m);
  define(
      m, "initialize",
      "Says which driver libraries devices are opened with when they are first needed: the first ones; the second "
      "ones, "
      "which make a device of the processor, only where there is no other, or none but the processor as a device of "
      "the "
      "third ones. The function, if there is one, is then given the number of devices that they have, and "
      "returns the numbers of those to use, in order; the other one, how many bytes of each will be needed soon.",
      [](const std::vector<std::string>& paths, const std::optional<Runtime::Choice>& choice,
         const std::vector<std::string>& processor, const std::vector<std::string>& instead_of,
         const Expectations& expectations) {
        open_devices_with([paths, choice, own = Runtime::Processor{processor, instead_of}, expectations]() -> Runtime& {
          return open_runtime(paths, choice.value_or(nullptr), own, expectations);
        });
        install_interruptions();
        configure_allocators();
        register_hooks();
      });
  m.def(
      "run_backward", torch::wrap_pybind_function(run_backward),
      "Calls a function that runs a backward pass, with the arguments behind it. Of the main thread's own, Ctrl-C ends "
      "the waits of the threads that run it, and KeyboardInterrupt is raised.");
  m.def("joined_to_inputs_of",
        torch::wrap_pybind_function([](const py::object& context) { return joined_to_inputs_of(context.ptr()); }),
        "An empty tensor whose gradient goes where that of the node goes whose ctx this is, and raises.");
  define_for_all(m, "shutdown",
                 "Waits for queued work and stops the runtime's threads; at interpreter exit. In a hurry, what did not "
                 "begin is left out.",
                 [](bool hurry) {
                   if (devices_opened()) Runtime::get().shutdown(hurry);
                 });
  define_for_all(m, "forked", "True in a process forked after devices were opened.",
                 [] { return devices_opened() && device_count() > 0 && Runtime::get().forked(); });
  define_for_all(m, "devices_opened", "Whether devices were opened, which happens when they are first needed.",
                 [] { return devices_opened(); });
  define_for_all(m, "problems", "What kept drivers or devices from being used, one line each.",
                 [] { return problems(); });
  define_for_all(m, "passed_over",
                 "Why the driver that serves as the last resort does, one line for each other driver.",
                 [] { return opened_runtime().passed_over(); });

  define_for_all(m, "device_count", "Number of devices.", [] { return static_cast<int>(device_count()); });
  define(m, "require_device", "Raises, with what to do, if there is no usable device in this process.",
         [] { device(-1); });
  define(m, "current_device", "Index of the calling thread's device.",
         [] { return static_cast<int>(current_device()); });
  define(m, "set_device", "Selects the calling thread's device.",
         [](int64_t index) { set_current_device(checked(index)); });
  define(m, "device_properties", "What a device can do.", [](int64_t index) { return properties_of(checked(index)); });
  define(
      m, "library_has",
      "Whether the library of a device's driver has a function for an operator on operands like these: None, a number, "
      "a tuple of integers, or a tensor as dtype, sizes, strides, and whether it is a result.",
      [](int64_t index, const std::string& name, const py::list& operands) {
        return library_has(checked(index), name, operands);
      });
  define(m, "seed_devices_to_come", "The seed of default generators that are not made yet.", &seed_devices_to_come);
  define(m, "default_generator", "A device's default torch.Generator.",
         [](int64_t index) { return default_generator_object(checked(index)); });
  define_blocking(m, "synchronize", "Waits for all streams of a device.", [](int64_t index) {
    settle();
    translate_errors([&] { device(checked(index)).synchronize(); });
  });

  define_blocking(m, "reset_device", "Makes a device as new, lost or not: what was on it is lost.",
                  [](int64_t index) { reset_device(checked(index)); });
  define(m, "sensors", "What a device's sensors say; None where it has none.",
         [](int64_t index) { return sensors_of(checked(index)); });

  define(m, "is_capturing", "Whether a graph captures what is queued on the calling thread's current stream.",
         [] { return devices_opened() && current_stream(current_device()).recording() != nullptr; });
  define_for_all(m, "set_sync_debug_mode", "What a wait for the device does: 0 nothing, 1 warns, 2 raises.",
                 &set_sync_debug_mode);
  define_for_all(m, "sync_debug_mode", "The mode that was set last.", &sync_debug_mode);

  py::class_<UnnoticedWaits>(m, "WaitsUnnoticed", "A context in which this thread's waits are not noticed.")
      .def(py::init<>())
      .def("__enter__", [](UnnoticedWaits& waits) { waits.scope.emplace(); })
      .def("__exit__", [](UnnoticedWaits& waits, const py::args&) { waits.scope.reset(); });

  define_for_all(m, "admit_absent_device_type",
                 "Lets PyTorch go as far as the dispatcher with a device type that it does not have.",
                 &admit_absent_device_type);

  define(m, "register_graphs", "Gives torch.accelerator.Graph its implementation, under the device's name of now.",
         &register_graphs);
  define(m, "set_cache_directory", "Where program binaries are kept; an empty string keeps none.",
         [](const std::string& directory) { ProgramCache::set_directory(directory); });
  define(m, "set_shipped_programs", "The file of program binaries that came with Outboard; an empty string: none.",
         &ShippedPrograms::set_file);
  define(m, "program_binaries",
         "Binaries of all programs that a device was asked for, by what names them in that file. Waits for them.",
         [](int64_t index) {
           py::dict made;
           for (const auto& [digest, binary] : device(checked(index)).programs().binaries()) {
             made[py::str(digest)] = py::bytes(binary);
           }
           return made;
         });
  define(m, "set_build_executable", "The program that builds device programs beside this process; empty for none.",
         [](const std::string& path) { BuildProcess::set_executable(path); });
  define(m, "program_statistics", "Programs built (of these elsewhere, by other processes) and loaded from disk.",
         [](int64_t index) { return program_statistics(checked(index)); });
}

}  // namespace outboard::aten
