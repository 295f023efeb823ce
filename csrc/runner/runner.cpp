// SPDX-License-Identifier: Apache-2.0
#include "outboard/runner.h"

#include <dlfcn.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "runner/model.h"
#include "runtime/base/error.h"
#include "runtime/device.h"

using namespace outboard;

/// What `ob_array_info` points to.
struct ArgumentInfo {
  ob_array_info info;
  std::vector<int64_t> least, most;
};

struct ob_model_t {
  ob_model_t(const std::string& path, const std::string& weights, Device& device) : model(path, weights, device) {
    for (const ModelFile::Argument& argument : model.file().inputs) inputs.push_back(info_of(argument));
    for (const ModelFile::Argument& argument : model.file().outputs) outputs.push_back(info_of(argument));
  }

  ArgumentInfo info_of(const ModelFile::Argument& argument) const {
    ArgumentInfo made{{}, {}, {}};
    std::tie(made.least, made.most) = model.bounds(argument);
    made.info = {argument.name.c_str(), static_cast<ob_dtype>(argument.dtype),
                 static_cast<uint32_t>(argument.sizes.size()), nullptr, nullptr};
    return made;
  }

  const Model model;
  std::vector<ArgumentInfo> inputs, outputs;
};

struct ob_results_t {
  std::vector<HostArray> arrays;
  std::vector<std::string> names;  // the model may be closed before the results are released
};

namespace {

thread_local std::string last_error;

/// Turns what `function` throws into a status.
template <typename Function>
ob_status guarded(Function&& function) {
  try {
    function();
    return OB_OK;
  } catch (const Error& error) {
    last_error = error.what();
    return error.status();
  } catch (const std::exception& error) {
    last_error = error.what();
    return OB_INTERNAL;
  }
}

void require(bool condition, const char* what) {
  if (!condition) throw Error(OB_INVALID_ARGUMENT, what);
}

/// A driver beside this library, as both are installed.
std::string installed_driver(const char* name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&ob_runner_start), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string library = info.dli_fname;
  const size_t slash = library.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : library.substr(0, slash);
  return directory + "/../drivers/liboutboard_" + name + ".so";
}

/// Drivers to open devices with.
struct Drivers {
  std::vector<std::string> paths;
  Runtime::Processor processor;
};

/// As in Python (`outboard.drivers`): OpenCL's devices, or the processor where that is all there is.
Drivers default_drivers() {
  const char* named = std::getenv("OUTBOARD_DRIVER");
  if (named == nullptr || *named == '\0') {
    const std::string opencl = installed_driver("opencl");
    return {{opencl}, {{installed_driver("host")}, {opencl}}};
  }
  std::vector<std::string> paths(1);
  for (const char* c = named; *c != '\0'; ++c) {
    if (*c == ',') {
      paths.emplace_back();
    } else {
      paths.back() += *c;
    }
  }
  return {paths, {}};
}

void start(const Drivers& drivers) {
  static std::once_flag once;
  std::call_once(once, [&] {
    if (const char* cache = std::getenv("OUTBOARD_CACHE_DIR")) ProgramCache::set_directory(cache);
    Runtime::initialize(drivers.paths, {}, drivers.processor);
    std::atexit([] { Runtime::get().shutdown(); });
  });
  if (Runtime::get().device_count() != 0) return;
  std::string message = "there is no device";
  for (const std::string& problem : Runtime::get().problems()) message += "\n  " + problem;
  throw Error(OB_UNSUPPORTED, message);
}

ob_status give_info(const std::vector<ArgumentInfo>& all, uint32_t number, ob_array_info* info) {
  return guarded([&] {
    require(info != nullptr && number < all.size(), "the model has no input or output of that number");
    *info = all[number].info;
    info->least = all[number].least.data();
    info->most = all[number].most.data();
  });
}

}  // namespace

extern "C" {

const char* ob_runner_error(void) { return last_error.c_str(); }

ob_status ob_runner_start(const char* const* drivers, uint32_t count) {
  return guarded([&] { start(count == 0 ? default_drivers() : Drivers{{drivers, drivers + count}, {}}); });
}

ob_status ob_model_open(const char* path, const char* weights, uint32_t device, ob_model* model) {
  return guarded([&] {
    require(path != nullptr && model != nullptr, "ob_model_open needs a path and a place for the model");
    start(default_drivers());
    *model = new ob_model_t(path, weights != nullptr ? weights : "", Runtime::get().device(static_cast<int>(device)));
  });
}

void ob_model_close(ob_model model) { delete model; }

uint32_t ob_model_input_count(ob_model model) { return static_cast<uint32_t>(model->inputs.size()); }
uint32_t ob_model_output_count(ob_model model) { return static_cast<uint32_t>(model->outputs.size()); }

ob_status ob_model_input(ob_model model, uint32_t number, ob_array_info* info) {
  return give_info(model->inputs, number, info);
}
ob_status ob_model_output(ob_model model, uint32_t number, ob_array_info* info) {
  return give_info(model->outputs, number, info);
}

ob_status ob_model_run(ob_model model, const ob_array* inputs, uint32_t count, ob_results* results) {
  return guarded([&] {
    require(model != nullptr && results != nullptr && (count == 0 || inputs != nullptr),
            "ob_model_run needs a model, inputs and a place for the results");
    auto made = std::make_unique<ob_results_t>();
    made->arrays = model->model.run(inputs, count);
    for (const ModelFile::Argument& output : model->model.file().outputs) made->names.push_back(output.name);
    *results = made.release();
  });
}

ob_status ob_results_array(ob_results results, uint32_t number, ob_array* array) {
  return guarded([&] {
    require(array != nullptr && number < results->arrays.size(), "there is no result of that number");
    const HostArray& made = results->arrays[number];
    *array = {results->names[number].c_str(),
              static_cast<ob_dtype>(made.dtype),
              static_cast<uint32_t>(made.sizes.size()),
              made.sizes.data(),
              made.data.data(),
              made.data.size()};
  });
}

void ob_results_release(ob_results results) { delete results; }

}  // extern "C"
