// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cudnn_attention.h"
#include "cudnn_objects.h"
#include "simulator.h"
#include "stream.h"

/// A simulator of the part of cuDNN's graph API that the CUDA driver uses: convolutions and their gradients, sums, and
/// both at once, and attention, on the simulator's streams. It is as strict as NVIDIA's header about attributes, their
/// types and counts, what must be finalized when, and who uses a handle. Engines that nobody who wants right results
/// may take give wrong ones.
namespace {

using namespace simulator::cudnn;

constexpr int64_t kMostWorkspace = int64_t{64} << 20;  // one part of 64 of the device's memory

struct Rule {
  int type;
  size_t bytes;
  int64_t most;  // values
  bool required;
};

/// What may be set, by kind and attribute.
const std::map<std::pair<int, int>, Rule>& rules() {
  static const std::map<std::pair<int, int>, Rule> all{
      {{kPointwise, 0}, {14, 4, 1, true}},
      {{kPointwise, 1}, {1, 4, 1, true}},
      {{kConvolution, 100}, {1, 4, 1, true}},
      {{kConvolution, 101}, {7, 4, 1, true}},
      {{kConvolution, 102}, {3, 8, 8, true}},
      {{kConvolution, 103}, {3, 8, 8, true}},
      {{kConvolution, 104}, {3, 8, 8, true}},
      {{kConvolution, 105}, {3, 8, 8, true}},
      {{kConvolution, 106}, {3, 8, 1, true}},
      {{kHeuristics, 200}, {8, 4, 1, true}},
      {{kHeuristics, 201}, {15, 8, 1, true}},
      {{kPlan, 400}, {0, 8, 1, true}},
      {{kPlan, 401}, {15, 8, 1, true}},
      {{kForward, 700}, {4, 4, 1, true}},  // doubles are let through, too
      {{kForward, 701}, {4, 4, 1, true}},
      {{kForward, 702}, {15, 8, 1, true}},
      {{kForward, 703}, {15, 8, 1, true}},
      {{kForward, 704}, {15, 8, 1, true}},
      {{kForward, 705}, {15, 8, 1, true}},
      {{kData, 706}, {4, 4, 1, true}},
      {{kData, 707}, {4, 4, 1, true}},
      {{kData, 708}, {15, 8, 1, true}},
      {{kData, 709}, {15, 8, 1, true}},
      {{kData, 710}, {15, 8, 1, true}},
      {{kData, 711}, {15, 8, 1, true}},
      {{kFilter, 712}, {4, 4, 1, true}},
      {{kFilter, 713}, {4, 4, 1, true}},
      {{kFilter, 714}, {15, 8, 1, true}},
      {{kFilter, 715}, {15, 8, 1, true}},
      {{kFilter, 716}, {15, 8, 1, true}},
      {{kFilter, 717}, {15, 8, 1, true}},
      {{kPointwiseOperation, 750}, {15, 8, 1, true}},
      {{kPointwiseOperation, 751}, {15, 8, 1, true}},
      {{kPointwiseOperation, 752}, {15, 8, 1, true}},
      {{kPointwiseOperation, 753}, {15, 8, 1, true}},
      {{kGraph, 800}, {0, 8, 1, false}},  // an operation's own graph has none
      {{kGraph, 801}, {15, 8, 8, true}},
      {{kTensor, 900}, {3, 8, 1, true}},
      {{kTensor, 901}, {1, 4, 1, true}},
      {{kTensor, 902}, {3, 8, 8, true}},
      {{kTensor, 903}, {3, 8, 8, true}},
      {{kTensor, 906}, {3, 8, 1, true}},
      {{kTensor, 907}, {2, 1, 1, false}},
      {{kTensor, 908}, {2, 1, 1, false}},
      {{kAttention, 2800}, {15, 8, 1, true}},
      {{kAttention, 2801}, {15, 8, 1, true}},
      {{kAttention, 2802}, {15, 8, 1, true}},
      {{kAttention, 2803}, {15, 8, 1, true}},
      {{kAttention, 2805}, {15, 8, 1, false}},
      {{kAttention, 2811}, {15, 8, 1, false}},
      {{kAttention, 2812}, {3, 8, 1, false}},
      {{kAttention, 2813}, {3, 8, 1, false}},
      {{kAttention, 2814}, {15, 8, 1, false}},
      {{kBand, 3000}, {15, 8, 1, true}},
      {{kBand, 3005}, {15, 8, 1, true}},
      {{kBand, 3006}, {15, 8, 1, true}},
      {{kBand, 3007}, {14, 4, 1, true}},
      {{kSoftmax, 3100}, {15, 8, 1, true}},
      {{kSoftmax, 3101}, {15, 8, 1, true}},
      {{kSoftmax, 3102}, {15, 8, 1, false}},
      {{kPack, 1000}, {3, 8, 8, true}},
      {{kPack, 1001}, {6, 8, 8, true}},
      {{kPack, 1003}, {6, 8, 1, true}}};
  return all;
}

struct Handle {
  simulator::Context* context;
  simulator::Stream* stream = nullptr;
  std::atomic<bool> busy{false};
};

/// Two threads at one handle at a time are one too many; the pause makes it likely that they meet.
struct Turn {
  explicit Turn(Handle& handle_) : handle(handle_), alone(!handle_.busy.exchange(true)) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ~Turn() {
    if (alone) handle.busy = false;
  }
  Handle& handle;
  const bool alone;
};

/// An operation of a graph by value, so that nothing that is destroyed is needed when it runs: y = x * w, the gradient
/// of x or that of w, or y = x + w.
struct Operation {
  explicit Operation(const Object& object)
      : kind(object.kind),
        is_convolution(kind != kPointwiseOperation),
        x(object.part(is_convolution ? base_of(kind) + 4 : 751)),
        w(object.part(is_convolution ? base_of(kind) + 3 : 752)),
        y(object.part(is_convolution ? base_of(kind) + 5 : 753)) {
    const Object& how = object.part(is_convolution ? base_of(kind) + 2 : 750);
    compute = how.one<int>(is_convolution ? 100 : 1);
    mode = how.one<int>(is_convolution ? 101 : 0);
    dilations = how.all<int64_t>(102);
    strides = how.all<int64_t>(103);
    paddings = how.all<int64_t>(105);
  }

  static int base_of(int kind) { return kind == kForward ? 700 : kind == kData ? 706 : 712; }

  const Tensor& made() const { return kind == kData ? x : kind == kFilter ? w : y; }
  std::vector<const Tensor*> read() const {
    if (kind == kData) return {&w, &y};
    if (kind == kFilter) return {&x, &y};
    return {&x, &w};
  }

  bool fits() const {
    const bool in_double = x.type == kDouble || w.type == kDouble || y.type == kDouble;
    if (x.dims.size() != y.dims.size() || w.dims.size() != x.dims.size() || in_double != (compute == kDouble))
      return false;
    if (!is_convolution) {
      for (size_t i = 0; i < x.dims.size(); ++i) {
        if (x.dims[i] != y.dims[i] || (w.dims[i] != 1 && w.dims[i] != y.dims[i])) return false;
      }
      return mode == 0;
    }
    if (x.dims.size() != strides.size() + 2 || mode != 1 || x.dims[0] != y.dims[0] || w.dims[0] != y.dims[1])
      return false;
    if (x.dims[1] % w.dims[1] != 0 || w.dims[0] % (x.dims[1] / w.dims[1]) != 0) return false;
    for (size_t i = 0; i < strides.size(); ++i) {
      const int64_t extent = dilations[i] * (w.dims[i + 2] - 1) + 1;
      if (y.dims[i + 2] != (x.dims[i + 2] + 2 * paddings[i] - extent) / strides[i] + 1) return false;
    }
    return true;
  }

  /// One element: the sum over all products in which it has a part. The other indices follow from two of three.
  double convolved(const std::vector<int64_t>& at, const Pointers& data) const {
    if (kind == kForward) return over_taps(at, {w.dims[1]}, data);
    return kind == kData ? over_taps(at, {w.dims[0] / (x.dims[1] / w.dims[1])}, data) : over_places(at, data);
  }

  /// Of y or of x: over channels of the other in the same group, and taps.
  double over_taps(const std::vector<int64_t>& at, std::vector<int64_t> box, const Pointers& data) const {
    const bool forward = kind == kForward;
    const Tensor& other = forward ? x : y;
    const int64_t group = at[1] / (forward ? w.dims[0] / (x.dims[1] / w.dims[1]) : w.dims[1]), first = group * box[0];
    box.insert(box.end(), w.dims.begin() + 2, w.dims.end());
    double sum = 0;
    each_index(box, [&](const std::vector<int64_t>& tap) {
      const int64_t channel = first + tap[0];
      std::vector<int64_t> from{at[0], channel},
          weight{forward ? at[1] : channel, forward ? tap[0] : at[1] % w.dims[1]};
      for (size_t i = 0; i < strides.size(); ++i) {
        const int64_t shift = tap[i + 1] * dilations[i] - paddings[i], numerator = at[i + 2] - shift;
        if (!forward && numerator % strides[i] != 0) return;
        from.push_back(forward ? at[i + 2] * strides[i] + shift : numerator / strides[i]);
        weight.push_back(tap[i + 1]);
        if (from.back() < 0 || from.back() >= other.dims[i + 2]) return;
      }
      sum += value(other, from, data) * value(w, weight, data);
    });
    return sum;
  }

  /// Of w: over images and places of y.
  double over_places(const std::vector<int64_t>& at, const Pointers& data) const {
    const int64_t group = at[0] / (w.dims[0] / (x.dims[1] / w.dims[1]));
    std::vector<int64_t> box{y.dims[0]};
    box.insert(box.end(), y.dims.begin() + 2, y.dims.end());
    double sum = 0;
    each_index(box, [&](const std::vector<int64_t>& place) {
      std::vector<int64_t> from{place[0], group * w.dims[1] + at[1]}, to{place[0], at[0]};
      for (size_t i = 0; i < strides.size(); ++i) {
        from.push_back(place[i + 1] * strides[i] + at[i + 2] * dilations[i] - paddings[i]);
        to.push_back(place[i + 1]);
        if (from.back() < 0 || from.back() >= x.dims[i + 2]) return;
      }
      sum += value(x, from, data) * value(y, to, data);
    });
    return sum;
  }

  static double value(const Tensor& tensor, const std::vector<int64_t>& at, const Pointers& data) {
    return load(tensor.type, data.at(tensor.id), place_of(tensor, at));
  }

  int kind;
  bool is_convolution;
  Tensor x, w, y;
  int compute = 0, mode = 0;
  std::vector<int64_t> dilations, strides, paddings;
};

/// The attention that a graph is; nullptr if it is none.
const Object* attention_of(const Object& graph) {
  const Object* const first = graph.one<const Object*>(801);
  return first->kind == kAttention ? first : nullptr;
}

std::vector<Operation> operations_of(const Object& graph) {
  std::vector<Operation> made;
  for (const Object* each : graph.all<const Object*>(801)) made.emplace_back(*each);
  return made;
}

/// Tensors that a graph reads or writes in memory, by id.
std::map<int64_t, Tensor> memory_of(const std::vector<Operation>& operations) {
  std::map<int64_t, Tensor> made;
  for (const Operation& each : operations) {
    for (const Tensor* tensor : {&each.x, &each.w, &each.y}) {
      if (!tensor->is_virtual) made.emplace(tensor->id, *tensor);
    }
  }
  return made;
}

/// An engine: what is said of its numbers, and for which graphs it is.
struct Engine {
  std::vector<int> notes;
  bool wrong;                   // gives results that differ by 1
  int64_t workspace = 1 << 20;  // bytes
};

constexpr int kTensorCores = 0, kUnbuildable = 4, kGreedy = 5, kGood = 6, kFallback = 7;
constexpr int64_t kLarge = int64_t{48} << 20;  // a workspace that is more than is always there

const std::vector<Engine>& engines() {
  static const std::vector<Engine> all{{{0}, false},                   // tensor cores
                                       {{3, 1}, true},                 // operands rounded
                                       {{2}, true},                    // sums rounded
                                       {{4}, true},                    // not the same each time
                                       {{}, false},                    // its plan cannot be made
                                       {{}, false, int64_t{1} << 30},  // wants more memory than there is
                                       {{9, 5}, false},
                                       {{}, false}};
  return all;
}

/// Bytes that a configuration's plan wants. The best one for weights wants more than the others.
int64_t workspace_of(const Object& config) {
  const bool of_weights = config.graph->one<const Object*>(801)->kind == kFilter;
  return of_weights && config.engine == kGood ? kLarge : engines()[static_cast<size_t>(config.engine)].workspace;
}

/// Engines by the simulator's heuristics. A sum only behind a convolution, no doubles in three dimensions, and other
/// strides than packed ones only by what always works.
std::vector<int> found_by(int mode, const Object& graph) {
  if (graph.values.count(800) == 0) return {};
  if (const Object* const attention = attention_of(graph); attention != nullptr) {
    if (mode == 2 || !Attention(*attention).has_engine()) return {};
    return {2, 3, kUnbuildable, kGreedy, kTensorCores};
  }
  const std::vector<Operation> operations = operations_of(graph);
  if (!operations[0].is_convolution || (operations.size() > 1 && operations[0].kind != kForward)) return {};
  for (const Operation& each : operations) {
    if (each.compute == kDouble && each.x.dims.size() > 4) return {};
    if (mode == 2) continue;
    for (const Tensor* tensor : {&each.x, &each.w, &each.y}) {
      if (!tensor->packed() || (!tensor->is_virtual && tensor->alignment < 16)) return {};
    }
  }
  return mode == 2 ? std::vector<int>{kFallback} : std::vector<int>{0, 1, 2, 3, kUnbuildable, kGreedy, kGood};
}

int finalize_tensor(const Object& object) {
  const Tensor tensor(object);
  if (tensor.dims.size() < 4 || tensor.dims.size() != tensor.strides.size()) return kBadParam;
  for (const auto& each : {tensor.dims, tensor.strides}) {
    if (*std::min_element(each.begin(), each.end()) < 1) return kBadParam;
  }
  if (tensor.type != kFloat && tensor.type != kDouble && tensor.type != kHalf && tensor.type != kBfloat16) {
    return kNotSupported;
  }
  return tensor.alignment % size_of(tensor.type) == 0 ? kSuccess : kBadParam;
}

int finalize_convolution(const Object& object) {
  for (const int attribute : {102, 103, 104, 105}) {
    if (static_cast<int64_t>(object.all<int64_t>(attribute).size()) != object.one<int64_t>(106)) return kBadParam;
  }
  return object.all<int64_t>(104) == object.all<int64_t>(105) ? kSuccess : kNotSupported;
}

/// Virtual tensors lie between two operations; in graphs of several, nothing is written in place.
int finalize_graph(const Object& object) {
  const std::vector<const Object*> whole = object.all<const Object*>(801);
  if (whole[0]->kind == kAttention || whole[0]->kind == kBand) {
    const bool alone = whole[0]->kind == kAttention;
    return whole.size() == 1 && alone == (object.values.count(800) != 0) ? kSuccess : kNoSuchPattern;
  }
  const std::vector<Operation> operations = operations_of(object);
  std::set<int64_t> read, written;
  for (const Operation& each : operations) {
    for (const Tensor* tensor : each.read()) read.insert(tensor->id);
    if (!written.insert(each.made().id).second) return kNoSuchPattern;
  }
  for (const Operation& each : operations) {
    const Tensor& made = each.made();
    const bool in_place = read.count(made.id) != 0 && !made.is_virtual;
    if (in_place && (operations.size() > 1 || each.is_convolution)) return kNoSuchPattern;
    if (made.is_virtual && read.count(made.id) == 0) return kNoSuchPattern;
    for (const Tensor* tensor : each.read()) {
      if (tensor->is_virtual && written.count(tensor->id) == 0) return kNoSuchPattern;
    }
  }
  return kSuccess;
}

int finalize_one(const Object& object) {
  switch (object.kind) {
    case kTensor:
      return finalize_tensor(object);
    case kConvolution:
      return finalize_convolution(object);
    case kForward:
    case kData:
    case kFilter:
    case kPointwiseOperation:
      return Operation(object).fits() ? kSuccess : kShapeMismatch;
    case kGraph:
      return finalize_graph(object);
    case kAttention:
      return Attention(object).problem();
    case kBand:
      return Band(object).problem();
    case kSoftmax:
      return Softmax(object).problem();
    case kPlan:
      return object.part(401).engine == kUnbuildable ? kNotSupported : kSuccess;
    case kPack:
      return object.all<int64_t>(1000).size() == object.all<void*>(1001).size() ? kSuccess : kBadParam;
    default:
      return kSuccess;
  }
}

/// Carries out a graph: a convolution or a gradient of it, a sum, or one behind the other.
void compute(const std::vector<Operation>& operations, const Pointers& data, bool wrong) {
  const Operation& first = operations.front();
  const Operation& last = operations.back();
  const Tensor& made = last.made();
  each_index(made.dims, [&](const std::vector<int64_t>& index) {
    double value = first.is_convolution ? first.convolved(index, data) : Operation::value(first.x, index, data);
    if (!last.is_convolution) value += Operation::value(last.w, index, data);
    store(made.type, data.at(made.id), place_of(made, index), wrong ? value + 1 : value);
  });
}

/// Carries out a graph on a stream.
void put(Handle& handle, const Object& graph, const Pointers& data, int engine) {
  const bool wrong = engines()[static_cast<size_t>(engine)].wrong;
  simulator::entered(("cudnn: engine " + std::to_string(engine)).c_str());
  if (const Object* const whole = attention_of(graph); whole != nullptr) {
    simulator::entered("cudnn: attention");
    Attention attention(*whole);
    attention.read_numbers(data);
    handle.stream->put([attention, data, wrong] { attention.compute(data, wrong); });
    return;
  }
  const std::vector<Operation> operations = operations_of(graph);
  simulator::entered(operations.size() > 1 ? "cudnn: two operations" : "cudnn: one operation");
  if (operations[0].kind == kData) simulator::entered("cudnn: gradient of x");
  if (operations[0].kind == kFilter) simulator::entered("cudnn: gradient of w");
  const bool rounds = engine == kTensorCores && operations[0].read()[0]->type == kFloat;
  handle.stream->put([operations, data, wrong = wrong || rounds] { compute(operations, data, wrong); });
}

/// Whether each tensor of the graph has an address, aligned as it was said, in memory of the context.
int check_memory(const std::map<int64_t, Tensor>& tensors, const Pointers& data, simulator::Context& context) {
  if (tensors.size() != data.size()) return kBadParam;
  for (const auto& [id, tensor] : tensors) {
    const auto found = data.find(id);
    if (found == data.end()) return kBadParam;
    if (tensor.is_by_value) continue;
    const auto address = reinterpret_cast<uint64_t>(found->second);
    if (address % static_cast<uint64_t>(tensor.alignment) != 0) return kMisaligned;
    const auto bytes = static_cast<size_t>((tensor.last() + 1) * size_of(tensor.type));
    if (!simulator::lies_in_block(context, address, bytes)) return kBadParam;
  }
  return kSuccess;
}

}  // namespace

#define OUTBOARD_EXPORT extern "C" __attribute__((visibility("default")))

OUTBOARD_EXPORT size_t cudnnGetVersion() {
  const char* const chosen = std::getenv("CUDA_SIMULATOR_CUDNN");
  return chosen != nullptr ? static_cast<size_t>(std::atoi(chosen)) : 92801;
}
OUTBOARD_EXPORT const char* cudnnGetErrorString(int status) {
  return status == kExecutionFailed ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_SIMULATED";
}
OUTBOARD_EXPORT void cudnnGetLastErrorString(char* message, size_t bytes) {
  std::strncpy(message, "the simulator was asked to fail", bytes);
}
OUTBOARD_EXPORT int cudnnCreate(void** handle) {
  if (const int result = simulator::entered_context("cudnnCreate"); result != kSuccess) return result;
  *handle = new Handle{simulator::current_context()};
  return kSuccess;
}
OUTBOARD_EXPORT int cudnnSetStream(void* handle, void* stream) {
  if (const int result = simulator::entered_context("cudnnSetStream"); result != kSuccess) return result;
  auto& session = *static_cast<Handle*>(handle);
  auto* const given = static_cast<simulator::Stream*>(stream);
  if (given->context != session.context) return kBadParam;
  session.stream = given;
  return kSuccess;
}
OUTBOARD_EXPORT int cudnnBackendCreateDescriptor(int kind, void** made) {
  if (const int result = simulator::entered("cudnnBackendCreateDescriptor"); result != kSuccess) return result;
  *made = new Object(kind);
  return kSuccess;
}
OUTBOARD_EXPORT int cudnnBackendDestroyDescriptor(void* handle) {
  delete static_cast<Object*>(handle);
  return kSuccess;
}
OUTBOARD_EXPORT int cudnnBackendSetAttribute(void* handle, int attribute, int type, int64_t count, const void* values) {
  auto& object = *static_cast<Object*>(handle);
  const auto found = rules().find({object.kind, attribute});
  if (found == rules().end() || object.final || count < 1 || count > found->second.most) return kBadParam;
  Rule rule = found->second;
  if (rule.type == 4 && type == 5) rule = {5, 8, 1, true};
  if (rule.type != type) return kAttributeType;
  const auto* const bytes = static_cast<const char*>(values);
  object.values[attribute].assign(bytes, bytes + static_cast<size_t>(count) * rule.bytes);
  if (type != 15) return kSuccess;
  const std::vector<const Object*> parts = object.all<const Object*>(attribute);
  return std::all_of(parts.begin(), parts.end(), [](const Object* each) { return each->final; }) ? kSuccess
                                                                                                 : kNotFinalized;
}
OUTBOARD_EXPORT int cudnnBackendFinalize(void* handle) {
  if (const int result = simulator::entered("cudnnBackendFinalize"); result != kSuccess) return result;
  auto& object = *static_cast<Object*>(handle);
  for (const auto& [place, rule] : rules()) {
    if (place.first == object.kind && rule.required && object.values.count(place.second) == 0) return kBadParam;
  }
  if (object.kind == kEngine || object.kind == kConfig) return kBadParam;  // heuristics make them
  const int result = finalize_one(object);
  object.final = result == kSuccess;
  return result;
}

/// Engines that were found are copied into descriptors that the caller made.
static int results_of(const Object& heuristics, int64_t asked, int64_t* count, void* values) {
  const Object& graph = heuristics.part(201);
  const std::vector<int> found = found_by(heuristics.one<int>(200), graph);
  *count = static_cast<int64_t>(found.size()) + 3;  // cuDNN says how many there may be, and gives fewer
  if (asked == 0) return kSuccess;
  *count = std::min(static_cast<int64_t>(found.size()), asked);
  for (int64_t i = 0; i < *count; ++i) {
    Object& config = *static_cast<Object**>(values)[i];
    if (config.kind != kConfig) return kBadParam;
    config.engine = found[static_cast<size_t>(i)];
    config.graph = &graph;
    config.final = true;
  }
  return kSuccess;
}

static int engine_of(const Object& config, int64_t asked, int64_t* count, void* values) {
  Object& engine = **static_cast<Object**>(values);
  if (asked != 1 || engine.kind != kEngine) return kBadParam;
  engine.engine = config.engine;
  engine.final = true;
  *count = 1;
  return kSuccess;
}

static int notes_of(const Object& engine, int64_t asked, int64_t* count, void* values) {
  const std::vector<int>& notes = engines()[static_cast<size_t>(engine.engine)].notes;
  *count = static_cast<int64_t>(notes.size());
  std::copy_n(notes.begin(), std::min(*count, asked), static_cast<int*>(values));
  return kSuccess;
}

OUTBOARD_EXPORT int cudnnBackendGetAttribute(void* handle, int attribute, int type, int64_t asked, int64_t* count,
                                             void* values) {
  if (const int result = simulator::entered("cudnnBackendGetAttribute"); result != kSuccess) return result;
  const auto& object = *static_cast<Object*>(handle);
  if (!object.final) return kNotFinalized;
  if (object.kind == kHeuristics && attribute == 202 && type == 15) return results_of(object, asked, count, values);
  if (object.kind == kConfig && attribute == 300 && type == 15) return engine_of(object, asked, count, values);
  if (object.kind == kEngine && attribute == 1303 && type == 11) return notes_of(object, asked, count, values);
  if (object.kind != kPlan || attribute != 402 || type != 3 || asked != 1) return kBadParam;
  *static_cast<int64_t*>(values) = workspace_of(object.part(401));
  *count = 1;
  return kSuccess;
}

OUTBOARD_EXPORT int cudnnBackendExecute(void* given, void* plan_handle, void* pack_handle) {
  if (const int result = simulator::entered_context("cudnnBackendExecute"); result != kSuccess) return result;
  auto& handle = *static_cast<Handle*>(given);
  const Turn turn(handle);
  const auto& plan = *static_cast<Object*>(plan_handle);
  const auto& pack = *static_cast<Object*>(pack_handle);
  if (!turn.alone || handle.stream == nullptr || handle.context != simulator::current_context()) return kNotInitialized;
  if (!plan.final || !pack.final || plan.one<void*>(400) != given) return kBadParam;
  const Object& config = plan.part(401);
  const int64_t wanted = workspace_of(config);
  if (wanted > kMostWorkspace) return kExecutionFailed;
  const auto workspace = reinterpret_cast<uint64_t>(pack.one<void*>(1003));
  if (!simulator::lies_in_block(*handle.context, workspace, static_cast<size_t>(wanted))) return kBadParam;
  const std::vector<int64_t> ids = pack.all<int64_t>(1000);
  const std::vector<void*> pointers = pack.all<void*>(1001);
  Pointers data;
  for (size_t i = 0; i < ids.size(); ++i) data[ids[i]] = pointers[i];
  const Object* const attention = attention_of(*config.graph);
  const std::map<int64_t, Tensor> tensors =
      attention != nullptr ? Attention(*attention).memory() : memory_of(operations_of(*config.graph));
  const int result = check_memory(tensors, data, *handle.context);
  if (result != kSuccess) return result;
  put(handle, *config.graph, data, config.engine);
  return kSuccess;
}
