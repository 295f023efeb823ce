// SPDX-License-Identifier: Apache-2.0
// What torch.profiler shows of the device: kernels, copies and fills with the times that the driver measured, linked to
// the operators that submitted them, and collectives between processes. Registered with Kineto, PyTorch's collector of
// traces (torch/csrc/profiler/standalone/privateuse1_profiler.h).
#define USE_KINETO
#define FMT_HEADER_ONLY
#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "runtime/streams/tracing.h"
#include "torch/bridge/devices.h"

namespace outboard::aten {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

/// Devices come below the processes of the host in the trace.
constexpr int64_t kFirstPlace = libkineto::kExceedMaxPid;

ActivityType type_of(TracedWork::Kind kind) {
  switch (kind) {
    case TracedWork::Kind::kCopy:
      return ActivityType::GPU_MEMCPY;
    case TracedWork::Kind::kFill:
      return ActivityType::GPU_MEMSET;
    default:
      return ActivityType::CONCURRENT_KERNEL;
  }
}

/// The names that CUDA's traces use, which tools that read traces know.
std::string name_of(const TracedWork& work) {
  switch (work.kind) {
    case TracedWork::Kind::kCopy:
      return work.direction == OB_HOST_TO_DEVICE   ? "Memcpy HtoD"
             : work.direction == OB_DEVICE_TO_HOST ? "Memcpy DtoH"
                                                   : "Memcpy DtoD";
    case TracedWork::Kind::kFill:
      return "Memset";
    case TracedWork::Kind::kGraph:
      return "graph";
    default:
      return work.name;
  }
}

const char* call_of(TracedWork::Kind kind) {
  switch (kind) {
    case TracedWork::Kind::kCopy:
      return "copy";
    case TracedWork::Kind::kFill:
      return "fill";
    case TracedWork::Kind::kGraph:
      return "graph_launch";
    case TracedWork::Kind::kCollective:
      return "collective";
    default:
      return "launch";
  }
}

template <typename Extent>
std::string extent_of(const Extent& extent) {
  return fmt::format("[{}, {}, {}]", extent[0], extent[1], extent[2]);
}

void describe(const TracedWork& work, GenericTraceActivity& activity) {
  activity.addMetadata("device", work.device);
  activity.addMetadata("stream", work.stream);
  activity.addMetadata("correlation", activity.id);
  if (work.operation != 0) activity.addMetadata("External id", work.operation);
  if (work.kind == TracedWork::Kind::kKernel) {
    activity.addMetadata("global", extent_of(work.global));
    activity.addMetadata("local", extent_of(work.local));
  } else if (work.kind != TracedWork::Kind::kGraph) {
    activity.addMetadata("bytes", work.bytes);
    const int64_t time = work.end - work.begin;
    if (time > 0 && work.kind != TracedWork::Kind::kCollective) {
      activity.addMetadata("memory bandwidth (GB/s)", static_cast<double>(work.bytes) / static_cast<double>(time));
    }
  }
}

/// One run of the profiler.
class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> types) : types_(std::move(types)) {}

  void start() override {
    start_tracing();
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    works_ = stop_tracing();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override {
    if (untimed_ == 0) return {};
    return {fmt::format("{} pieces of work are missing: the driver could not tell when they ran", untimed_)};
  }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, INT64_MAX);
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span.name = torch_device(0).str();
    for (const TracedWork& work : works_) add(work, linked);
    for (auto& [where, range] : ranges_) buffer_->activities.push_back(std::move(range));
    buffer_->gpuOpCount = static_cast<int>(works_.size());
    for (const auto& activity : buffer_->activities) activity->log(logger);
    for (const int index : devices_) {
      logger.handleDeviceInfo({index, kFirstPlace + index, name(index), description(index)}, 0);
    }
    works_.clear();
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (devices_.empty()) return nullptr;
    const int index = *devices_.begin();
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{index, kFirstPlace + index, name(index), description(index)});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    for (const auto& [place, name] : rows_) infos.push_back({place.second, place.second, place.first, name});
    return infos;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { push_traced_operation(id); }
  void popCorrelationId() override { pop_traced_operation(); }
  void pushUserCorrelationId(uint64_t id) override { push_traced_range(id); }
  void popUserCorrelationId() override { pop_traced_range(); }

 private:
  static std::string name(int index) { return torch_device(static_cast<c10::DeviceIndex>(index)).str(); }
  static std::string description(int index) { return device(static_cast<c10::DeviceIndex>(index)).properties().name; }

  bool wants(ActivityType type) const { return types_.count(type) != 0; }

  void add(const TracedWork& work, const libkineto::getLinkedActivityCallback& linked) {
    if (work.end == 0) {
      ++untimed_;
      return;
    }
    const libkineto::ITraceActivity* operation = nullptr;
    if (work.operation != 0) operation = linked(static_cast<int32_t>(work.operation));
    ++last_;
    if (wants(ActivityType::PRIVATEUSE1_RUNTIME)) add_call(work, operation);
    if (!wants(type_of(work.kind))) return;
    GenericTraceActivity& activity = append(type_of(work.kind), name_of(work), work.begin, work.end);
    activity.device = work.device;
    activity.resource = static_cast<int32_t>(work.stream);
    activity.linked = operation;
    activity.flow.start = 0;
    describe(work, activity);
    devices_.insert(work.device);
    const bool is_collective = work.kind == TracedWork::Kind::kCollective;
    rows_.emplace(std::pair(work.device, work.stream),
                  is_collective ? "collectives" : fmt::format("stream {}", work.stream));
    if (work.range != 0 && wants(ActivityType::GPU_USER_ANNOTATION)) extend_range(work, linked);
  }

  /// What the host did: the arrow begins here.
  void add_call(const TracedWork& work, const libkineto::ITraceActivity* operation) {
    GenericTraceActivity& activity =
        append(ActivityType::PRIVATEUSE1_RUNTIME, call_of(work.kind), work.submit_begin, work.submit_end);
    activity.device = libkineto::processId();
    activity.resource = static_cast<int32_t>(work.thread);
    activity.threadId = static_cast<int32_t>(work.thread);
    activity.linked = operation;
    activity.flow.start = 1;
    activity.addMetadata("correlation", activity.id);
  }

  GenericTraceActivity& append(ActivityType type, const std::string& name, int64_t begin, int64_t end) {
    buffer_->emplace_activity(buffer_->span, type, name);
    GenericTraceActivity& activity = *buffer_->activities.back();
    activity.startTime = begin;
    activity.endTime = std::max(begin, end);
    activity.id = last_;
    activity.flow.id = static_cast<uint32_t>(last_);
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    return activity;
  }

  /// A range of the user's lasts on a stream from its first work there to its last.
  void extend_range(const TracedWork& work, const libkineto::getLinkedActivityCallback& linked) {
    auto& range = ranges_[{work.device, work.stream, work.range}];
    if (range == nullptr) {
      const libkineto::ITraceActivity* on_host = linked(static_cast<int32_t>(work.range));
      if (on_host == nullptr) {
        ranges_.erase({work.device, work.stream, work.range});
        return;
      }
      range = std::make_unique<GenericTraceActivity>(buffer_->span, ActivityType::GPU_USER_ANNOTATION, on_host->name());
      range->startTime = work.begin;
      range->device = work.device;
      range->resource = static_cast<int32_t>(work.stream);
      range->id = static_cast<int32_t>(work.range);
    }
    range->startTime = std::min(range->startTime, work.begin);
    range->endTime = std::max(range->endTime, work.end);
  }

  const std::set<ActivityType> types_;
  std::vector<TracedWork> works_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::map<std::tuple<int, int64_t, uint64_t>, std::unique_ptr<GenericTraceActivity>> ranges_;
  std::set<int> devices_;
  std::map<std::pair<int, int64_t>, std::string> rows_;  // by device and stream
  int64_t untimed_ = 0;
  int32_t last_ = 0;  // correlation of what the host did with what the device did
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    if (types.count(ActivityType::PRIVATEUSE1_RUNTIME) == 0) return nullptr;  // only the host's activities are wanted
    return std::make_unique<Session>(types);
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "outboard";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                         ActivityType::GPU_MEMSET, ActivityType::GPU_USER_ANNOTATION,
                                         ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace
}  // namespace outboard::aten
