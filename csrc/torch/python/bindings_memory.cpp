// SPDX-License-Identifier: Apache-2.0
#include "torch/python/bindings_memory.h"

#include <c10/core/AllocatorConfig.h>
#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "torch/bridge/host_allocator.h"
#include "torch/bridge/storage.h"
#include "torch/bridge/tensor.h"
#include "torch/python/binding_helpers.h"

namespace py = pybind11;

namespace outboard::aten {
namespace {

using bindings::checked;
using bindings::define;
using bindings::define_blocking;
using bindings::define_for_all;
using c10::DeviceIndex;

/// The first number of a user's pool; a graph's begins with 0 or 1.
constexpr uint64_t kUserPools = 2;

void add_gauge(std::map<std::string, int64_t>& to, const std::string& name, const MemoryStatistics::Gauge& from) {
  to[name + ".current"] = from.current;
  to[name + ".peak"] = from.peak;
  to[name + ".total_allocated"] = from.total_allocated;
  to[name + ".total_freed"] = from.total_freed;
}

void add_gauge(std::map<std::string, int64_t>& to, const std::string& name, const LazyStatistics::Gauge& from) {
  to[name + ".bytes"] = from.bytes;
  to[name + ".count"] = from.count;
}

std::map<std::string, int64_t> memory_statistics(DeviceIndex index) {
  Device& target = device(index);
  const MemoryStatistics from = target.allocator().statistics();
  const LazyStatistics lazy = target.residency().statistics();
  std::map<std::string, int64_t> to;
  add_gauge(to, "allocated", from.allocated);
  add_gauge(to, "reserved", from.reserved);
  add_gauge(to, "active", from.active);
  add_gauge(to, "cached", from.cached);
  add_gauge(to, "lazy.unbacked", lazy.unbacked);
  add_gauge(to, "lazy.zero", lazy.zero);
  add_gauge(to, "lazy.host", lazy.host);
  add_gauge(to, "lazy.spilled", lazy.spilled);
  add_gauge(to, "lazy.arranged", lazy.arranged);
  add_gauge(to, "lazy.materialized", lazy.materialized);
  add_gauge(to, "lazy.spills", lazy.spills);
  add_gauge(to, "lazy.restores", lazy.restores);
  add_gauge(to, "lazy.relayouts", lazy.relayouts);
  to["num_alloc_retries"] = from.num_alloc_retries;
  to["num_ooms"] = from.num_ooms;
  to["num_device_alloc"] = from.num_device_alloc;
  to["num_device_free"] = from.num_device_free;
  return to;
}

void add_gauge(std::map<std::string, int64_t>& to, const std::string& name, const c10::CachingAllocator::Stat& from) {
  to[name + ".current"] = from.current;
  to[name + ".peak"] = from.peak;
  to[name + ".allocated"] = from.allocated;
  to[name + ".freed"] = from.freed;
}

std::map<std::string, int64_t> host_memory_statistics() {
  const at::HostStats from = pinned_allocator()->get_stats();
  std::map<std::string, int64_t> to;
  add_gauge(to, "allocations", from.allocations);
  add_gauge(to, "allocated_bytes", from.allocated_bytes);
  add_gauge(to, "active_requests", from.active_requests);
  add_gauge(to, "active_bytes", from.active_bytes);
  to["num_host_alloc"] = from.num_host_alloc;
  to["num_host_free"] = from.num_host_free;
  return to;
}

// ---- snapshots, in the words of PyTorch's memory visualiser ----

const char* name_of(BlockInfo::State state) {
  switch (state) {
    case BlockInfo::kActive:
      return "active_allocated";
    case BlockInfo::kWaiting:
      return "active_pending_free";
    default:
      return "inactive";
  }
}

const char* name_of(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::kAlloc:
      return "alloc";
    case TraceEntry::kFree:
      return "free_completed";
    case TraceEntry::kSegmentAlloc:
      return "segment_alloc";
    case TraceEntry::kSegmentFree:
      return "segment_free";
    default:
      return "oom";
  }
}

/// The calling thread's stack, for a history of memory: Python's frames, and C++'s if they are wanted.
template <bool cpp>
MemoryContext gather_stack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, cpp);
}

/// Stacks as lists of frames, each stack read once.
class Frames {
 public:
  void expect(const MemoryContext& context) {
    if (context != nullptr) lists_.emplace(context.get(), py::list());
  }
  void read() {
    std::vector<torch::CapturedTraceback*> stacks;
    for (const auto& [context, list] : lists_) {
      stacks.push_back(static_cast<torch::CapturedTraceback*>(const_cast<void*>(context)));
    }
    if (stacks.empty()) return;
    const torch::SymbolizedTracebacks read = torch::symbolize(stacks);
    std::vector<py::dict> frames;
    for (const auto& from : read.all_frames) {
      py::dict frame;
      frame["filename"] = from.filename;
      frame["name"] = from.funcname;
      frame["line"] = from.lineno;
      frames.push_back(frame);
    }
    size_t number = 0;
    for (const auto& [context, list] : lists_) {
      for (const uint64_t frame : read.tracebacks[number]) py::list(list).append(frames[frame]);
      ++number;
    }
  }
  py::list of(const MemoryContext& context) const {
    return context == nullptr ? py::list() : py::list(lists_.at(context.get()));
  }

 private:
  std::map<const void*, py::list> lists_;
};

void record_history(int64_t index, size_t entries, int contexts, bool cpp, bool clear) {
  CachingAllocator& allocator = device(checked(index)).allocator();
  keep_contexts(static_cast<Contexts>(contexts), cpp ? &gather_stack<true> : &gather_stack<false>);
  if (clear) allocator.clear_history();
  allocator.record_history(entries);
}

py::dict describe(const SegmentInfo& segment, DeviceIndex index, const Frames& frames) {
  py::list blocks;
  uint64_t total = 0, allocated = 0, active = 0, requested = 0;
  for (const BlockInfo& from : segment.blocks) {
    py::dict block;
    block["address"] = from.ptr;
    block["size"] = from.size;
    block["requested_size"] = from.requested;
    block["state"] = name_of(from.state);
    block["frames"] = frames.of(from.context);
    blocks.append(block);
    total += from.size;
    allocated += from.state == BlockInfo::kActive ? from.size : 0;
    active += from.state == BlockInfo::kFree ? 0 : from.size;
    requested += from.state == BlockInfo::kActive ? from.requested : 0;
  }
  py::dict to;
  to["device"] = static_cast<int>(index);
  to["address"] = segment.blocks.front().ptr;
  to["total_size"] = total;
  to["allocated_size"] = allocated;
  to["active_size"] = active;
  to["requested_size"] = requested;
  to["stream"] = segment.stream;
  to["segment_type"] = segment.small ? "small" : "large";
  to["segment_pool_id"] = py::make_tuple(segment.pool == 0 ? 0 : kUserPools, segment.pool);
  to["is_expandable"] = false;
  to["frames"] = py::list();
  to["blocks"] = blocks;
  return to;
}

py::list segments(DeviceIndex index) {
  py::list all;
  const std::vector<SegmentInfo> segments = device(index).allocator().segments();
  Frames frames;
  for (const SegmentInfo& segment : segments) {
    for (const BlockInfo& block : segment.blocks) frames.expect(block.context);
  }
  frames.read();
  for (const SegmentInfo& segment : segments) all.append(describe(segment, index, frames));
  return all;
}

py::list history(DeviceIndex index) {
  py::list all;
  const std::vector<TraceEntry> entries = device(index).allocator().history();
  Frames frames;
  for (const TraceEntry& from : entries) frames.expect(from.context);
  frames.read();
  for (const TraceEntry& from : entries) {
    py::dict entry;
    entry["action"] = name_of(from.action);
    entry[from.action == TraceEntry::kOutOfMemory ? "device_free" : "addr"] = from.ptr;
    entry["size"] = from.size;
    entry["stream"] = from.stream;
    entry["time_us"] = from.time_us;
    entry["frames"] = frames.of(from.context);
    all.append(entry);
  }
  return all;
}

// ---- pools ----

/// A pool as Python has it.
struct UserPool {
  MemoryPoolPointer pool = MemoryPool::create();
};

void bind_pools(py::module_& m) {
  py::class_<UserPool>(m, "MemoryPool", "Device memory for those who ask for it alone.")
      .def(py::init<>())
      .def_property_readonly(
          "id", [](const UserPool& pool) { return std::pair(kUserPools, pool.pool->id()); },
          "As segments have it in ``segment_pool_id``.")
      .def(
          "use_count", [](const UserPool& pool) { return pool.pool.use_count(); },
          "How many things keep it: this object, scopes, and memory of it.");
  define(m, "begin_memory_pool", "From now on, what this thread allocates on a device is for the pool.",
         [](int64_t index, const UserPool& pool) { begin_memory_pool(checked(index), pool.pool); });
  define(m, "end_memory_pool", "Ends that. Raises RuntimeError if it was not begun on this thread.",
         [](int64_t index, const UserPool& pool) {
           TORCH_CHECK(end_memory_pool(checked(index), *pool.pool),
                       "use_mem_pool() ends on another thread than it began on, so that the first one goes on "
                       "allocating for the pool");
         });
}

// ---- memory without a tensor ----

struct RawBlocks {
  std::mutex mutex;
  std::map<uint64_t, std::pair<Device*, Block*>> by_pointer;
};

RawBlocks& raw_blocks() {
  static RawBlocks* const instance = new RawBlocks;
  return *instance;
}

uint64_t allocate_raw(DeviceIndex index, uint64_t bytes, int64_t stream) {
  Device& target = device(index);
  Block* block = translate_errors(
      [&] { return target.residency().allocate(bytes, target.stream(stream), current_memory_pool(target.index())); });
  if (block == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(raw_blocks().mutex);
  raw_blocks().by_pointer[block->ptr] = {&target, block};
  return block->ptr;
}

void free_raw(uint64_t pointer) {
  if (pointer == 0) return;
  std::pair<Device*, Block*> found;
  {
    const std::lock_guard<std::mutex> lock(raw_blocks().mutex);
    const auto entry = raw_blocks().by_pointer.find(pointer);
    TORCH_CHECK_VALUE(entry != raw_blocks().by_pointer.end(), pointer, " was not allocated by caching_allocator_alloc");
    found = entry->second;
    raw_blocks().by_pointer.erase(entry);
  }
  found.first->allocator().free(found.second);
}

// ---- pins ----

void pin(const at::Tensor& tensor) {
  Allocation& allocation = allocation_of(tensor);
  translate_errors([&] {
    Work work(current_stream(tensor.device().index()));
    work.resolve(allocation);
    if (allocation.holds() == 0) allocation.hold();
  });
}

void unpin(const at::Tensor& tensor) {
  Allocation& allocation = allocation_of(tensor);
  const std::lock_guard guard(allocation.device().order().lock());
  if (allocation.holds() != 0) allocation.let_go();
}

const char* state_of(const at::Tensor& tensor) {
  switch (allocation_of(tensor).state()) {
    case State::kUnbacked:
      return "unbacked";
    case State::kZero:
      return "zero";
    case State::kHost:
      return "host";
    case State::kDevice:
      return "device";
    case State::kSpilled:
      return "spilled";
    case State::kArranged:
      return "arranged";
  }
  TORCH_INTERNAL_ASSERT(false, "an allocation in no state");
}

std::optional<std::string> layout_of(const at::Tensor& tensor) {
  const std::shared_ptr<const Arrangement> arrangement = allocation_of(tensor).arrangement();
  return arrangement == nullptr ? std::nullopt : std::optional(arrangement->layout().name());
}

void undo_layout(const at::Tensor& tensor) {
  translate_errors([&] { Work(current_stream(tensor.device().index())).resolve(allocation_of(tensor)); });
}

/// What PyTorch's settings said when they were last read.
AllocatorOptions& allocator_options() {
  static AllocatorOptions options;
  return options;
}

}  // namespace

void configure_allocators() {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  if (Config::use_expandable_segments()) {
    TORCH_WARN_ONCE("PYTORCH_ALLOC_CONF: expandable_segments has no effect on this device");
  }
  if (Config::pinned_use_background_threads()) {
    TORCH_WARN_ONCE("PYTORCH_ALLOC_CONF: pinned_use_background_threads has no effect on this device");
  }
  AllocatorOptions& options = allocator_options();
  options.max_split_size = Config::max_split_size();
  options.max_non_split_rounding = Config::max_non_split_rounding_size();
  options.large_segment = Config::large_segment_size();
  options.garbage_collection_threshold = Config::garbage_collection_threshold();
  const std::vector<size_t>& divisions = Config::roundup_power2_divisions();
  std::copy_n(divisions.begin(), std::min(divisions.size(), options.roundup_power2_divisions.size()),
              options.roundup_power2_divisions.begin());
  if (devices_opened()) apply_allocator_options(opened_runtime());
}

void apply_allocator_options(Runtime& runtime) {
  for (int index = 0; index < runtime.device_count(); ++index) {
    runtime.device(index).allocator().set_options(allocator_options());
  }
}

void bind_memory(py::module_& m) {
  bind_pools(m);
  define(m, "memory_statistics", "Counters of a device's memory.",
         [](int64_t index) { return memory_statistics(checked(index)); });
  define(m, "host_memory_statistics", "Counters of pinned host memory.", host_memory_statistics);
  define(m, "reset_peak_host_memory_stats", "Peaks of pinned host memory become current values.",
         [] { pinned_allocator()->reset_peak_stats(); });
  define(m, "reset_accumulated_host_memory_stats", "Totals of pinned host memory become zero.",
         [] { pinned_allocator()->reset_accumulated_stats(); });
  define_blocking(m, "empty_cache", "Returns cached memory to the driver.",
                  [](int64_t index) { translate_errors([&] { device(checked(index)).empty_cache(); }); });
  define(m, "memory_info", "(free, total) bytes.",
         [](int64_t index) { return translate_errors([&] { return device(checked(index)).memory_info(); }); });
  define(m, "reset_peak_memory_stats", "Peaks become current values.",
         [](int64_t index) { device(checked(index)).allocator().reset_peak(); });
  define(m, "reset_accumulated_memory_stats", "Totals become zero.",
         [](int64_t index) { device(checked(index)).reset_accumulated_statistics(); });
  define(m, "memory_limit", "Bytes that the allocator may hold.",
         [](int64_t index) { return device(checked(index)).allocator().limit(); });
  define(m, "set_memory_limit", "Sets the bytes that the allocator may hold.",
         [](int64_t index, uint64_t bytes) { device(checked(index)).allocator().set_limit(bytes); });
  define(m, "configure_allocators", "Reads PyTorch's allocator settings again.", configure_allocators);
  define(m, "memory_segments", "The memory got from the driver, piece by piece.",
         [](int64_t index) { return segments(checked(index)); });
  define(m, "record_memory_history", "Keeps that many of the next events, with stacks for so much; 0 stops.",
         record_history);
  define(m, "memory_history", "The events kept.", [](int64_t index) { return history(checked(index)); });
  define_blocking(
      m, "allocate_raw", "Device memory without a tensor.",
      [](int64_t index, uint64_t bytes, int64_t stream) { return allocate_raw(checked(index), bytes, stream); });
  define_blocking(m, "free_raw", "Frees memory of allocate_raw.", free_raw);
  define_blocking(m, "pin", "Brings a tensor's memory to the device and keeps it there.", pin);
  define(m, "unpin", "Lets a tensor's memory move again.", unpin);
  define_blocking(m, "host_view",
                  "A CPU tensor over the same memory, which stays where it is while that tensor or one over it lives.",
                  [](const at::Tensor& tensor) { return host_view(tensor); });
  define(m, "put_on_host_memory",
         "Puts a storage on the memory of a CPU storage, which has its contents already and as many bytes.",
         [](const c10::Storage& storage, const c10::Storage& on_host) {
           put_on_host_memory(*storage.unsafeGetStorageImpl(), on_host);
         });
  define(m, "storage_on_host_memory", "A storage of a device on the memory of a CPU storage.",
         [](const c10::Storage& on_host, int64_t index) { return storage_on_host_memory(on_host, checked(index)); });
  define_for_all(m, "host_memory_of", "The CPU storage on whose memory a storage is, or None.", &host_memory_of);
  define_for_all(m, "set_eager_variable",
                 "Names an environment variable: while it is 1, tensors take device memory when they are made.",
                 &set_eager_variable);
  define_for_all(
      m, "set_contents_wait",
      "Whether contents wait on the host until work needs them even where the device's memory is the host's.",
      &set_contents_wait);
  define(m, "memory_state", "Where a tensor's bytes are.", state_of);
  define(m, "layout_of", "The name of the layout that a tensor's contents are in, or None.", layout_of);
  define_blocking(m, "undo_layout", "Has a tensor's contents lie by strides, in device memory.", undo_layout);
}

}  // namespace outboard::aten
