// SPDX-License-Identifier: Apache-2.0
#include "outboard/driver.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/inner.h"

/// A driver that forwards to the one named by OUTBOARD_FAULTS_DRIVER (a library path) and fails on request, so that
/// tests can make real hardware fail at any call. It also counts what was made and not yet destroyed.
namespace {

struct Failure {
  uint64_t calls_to_come;
  ob_status status;
};

struct Faults {
  std::mutex mutex;
  std::map<std::string, uint64_t, std::less<>> calls;
  std::map<std::string, Failure, std::less<>> failures;
  std::map<std::string, int64_t, std::less<>> live;
};

Faults& faults() {
  static Faults* const instance = new Faults;
  return *instance;
}

const ob_driver* inner = nullptr;
thread_local std::string injected;
thread_local bool is_injected = false;

/// Counts a call; the status to fail it with, or OB_OK to let it through.
ob_status enter(std::string_view function) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  is_injected = false;
  const auto count = faults().calls.find(function);
  if (count != faults().calls.end()) ++count->second;
  if (count == faults().calls.end()) faults().calls.emplace(function, 1);
  const auto found = faults().failures.find(function);
  if (found == faults().failures.end() || --found->second.calls_to_come != 0) return OB_OK;
  const ob_status status = found->second.status;
  faults().failures.erase(found);
  injected = "injected failure of " + std::string(function);
  is_injected = true;
  return status;
}

const char* last_error() { return is_injected ? injected.c_str() : inner->last_error(); }

struct Effect {
  std::string_view function;
  const char* kind;
  int change;
};

/// What the driver's functions make and destroy. A kernel lives as long as its program.
constexpr Effect kEffects[] = {{"memory_alloc", "memory", 1},
                               {"memory_free", "memory", -1},
                               {"host_alloc", "host_memory", 1},
                               {"host_free", "host_memory", -1},
                               {"stream_create", "stream", 1},
                               {"stream_destroy", "stream", -1},
                               {"event_create", "event", 1},
                               {"event_destroy", "event", -1},
                               {"program_build", "program", 1},
                               {"program_load", "program", 1},
                               {"program_release", "program", -1},
                               {"capture_end", "graph", 1},
                               {"graph_destroy", "graph", -1},
                               {"function_load", "function", 1},
                               {"function_release", "function", -1},
                               {"communicator_create", "communicator", 1},
                               {"communicator_destroy", "communicator", -1}};

constexpr Effect effect_of(std::string_view function) {
  for (const Effect& effect : kEffects) {
    if (effect.function == function) return effect;
  }
  return {function, nullptr, 0};
}

void count(const Effect& effect) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  faults().live[effect.kind] += effect.change;
}

template <auto member, const char* name, typename... Arguments>
ob_status forward(Arguments... arguments) {
  constexpr Effect effect = effect_of(name);
  const ob_status injection = enter(name);
  if (injection != OB_OK) return injection;
  const ob_status status = (inner->*member)(arguments...);
  if constexpr (effect.kind != nullptr) {
    if (status == OB_OK) count(effect);
  }
  return status;
}

/// What returns no status, such as `launch_cost`, is passed through.
template <auto member, const char* name, typename Result, typename... Arguments>
constexpr void wrap(Result (*&slot)(Arguments...)) {
  if constexpr (std::is_same_v<Result, ob_status>) {
    if (slot != nullptr) slot = forward<member, name, Arguments...>;
  }
}

/// A batch as its launches one by one, of which some may be made to fail; they are left out. "launch_batch" fails
/// whole.
ob_status launch_batch(ob_stream stream, const ob_launch* launches, uint32_t count) {
  const ob_status injection = enter("launch_batch");
  if (injection != OB_OK) return injection;
  std::vector<ob_launch> passed;
  ob_status failed = OB_OK;
  for (uint32_t i = 0; i < count; ++i) {
    const ob_status status = enter("launch");
    if (status == OB_OK) passed.push_back(launches[i]);
    if (status != OB_OK) failed = status;
  }
  const ob_status status = inner->launch_batch(stream, passed.data(), static_cast<uint32_t>(passed.size()));
  is_injected = status == OB_OK && failed != OB_OK;
  return status != OB_OK ? status : failed;
}

ob_driver make_driver() {
  ob_driver driver{};
  const size_t size = std::min(inner->struct_size, sizeof(ob_driver));
  std::memcpy(static_cast<void*>(&driver), inner, size);
  driver.struct_size = size;
  driver.last_error = last_error;
#define OB_FUNCTION(function)                          \
  {                                                    \
    static constexpr char name[] = #function;          \
    wrap<&ob_driver::function, name>(driver.function); \
  }
#include "outboard/functions.def"
  if (driver.launch_batch != nullptr) driver.launch_batch = launch_batch;
  return driver;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const ob_driver* outboard_driver(void) {
  static const ob_driver* const driver = [] {
    inner = outboard::common::load_inner(std::getenv("OUTBOARD_FAULTS_DRIVER"));
    return inner == nullptr ? nullptr : new ob_driver(make_driver());
  }();
  return driver;
}

/// Makes the nth next call (1: the very next) of a driver function fail with an ob_status. nth = 0 cancels.
__attribute__((visibility("default"))) void outboard_faults_fail(const char* function, uint64_t nth, int status) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  faults().failures.erase(function);
  if (nth != 0) faults().failures[function] = {nth, static_cast<ob_status>(status)};
}

/// Calls of a driver function so far, failed ones included.
__attribute__((visibility("default"))) uint64_t outboard_faults_calls(const char* function) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  return faults().calls[function];
}

/// Objects of a kind (memory, host_memory, stream, event, program, function, graph, communicator) that were made and
/// not destroyed.
__attribute__((visibility("default"))) int64_t outboard_faults_live(const char* kind) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  return faults().live[kind];
}
}
