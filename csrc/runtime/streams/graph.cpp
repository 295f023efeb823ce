// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/graph.h"

#include <cstdio>
#include <cstring>
#include <sstream>

#include "runtime/base/driver_call.h"
#include "runtime/base/error.h"
#include "runtime/base/interruption.h"
#include "runtime/base/small_array.h"
#include "runtime/device.h"
#include "runtime/memory/allocation.h"
#include "runtime/streams/batch.h"
#include "runtime/streams/library_work.h"

namespace outboard {
namespace {

/// A stream of the driver on which launches are recorded.
class Capture {
 public:
  explicit Capture(Device& device) : driver_(device.driver()) {
    check(driver_, driver_.stream_create(device.handle(), &stream_), "creating a stream");
    const ob_status status = driver_.capture_begin(stream_);
    begun_ = status == OB_OK;
    if (begun_ || status == OB_UNSUPPORTED) return;
    driver_.stream_destroy(stream_);
    throw_failure(driver_, status, "beginning a graph");
  }
  ~Capture() {
    void* unfinished = nullptr;
    if (begun_ && driver_.capture_end(stream_, &unfinished) == OB_OK && unfinished != nullptr) {
      driver_.graph_destroy(unfinished);
    }
    driver_.stream_destroy(stream_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// False: the device has no graphs.
  bool begun() const { return begun_; }
  ob_stream stream() const { return stream_; }

  void* end() {
    void* graph = nullptr;
    begun_ = false;
    check(driver_, driver_.capture_end(stream_, &graph), "ending a graph");
    return graph;
  }

 private:
  const DeviceDriver& driver_;
  ob_stream stream_ = nullptr;
  bool begun_ = false;
};

}  // namespace

void fill_seeds(Stream& stream, ob_ptr to, const int64_t* seeds, int64_t count) {
  for (int64_t i = 0; i < count; ++i, to += sizeof(int64_t)) {
    stream.fill(to, &seeds[i], sizeof(int64_t), sizeof(int64_t));
  }
}

Recording::~Recording() {
  for (const Baked& baked : baked_) driver_->graph_destroy(baked.graph);
  for (Allocation* allocation : kept_) {
    allocation->let_go();
    allocation->release();
  }
}

void Recording::launch(const Launch& launch) {
  std::lock_guard lock(mutex_);
  kernels_.emplace_back(*launch.kernel);
  commands_.emplace_back(launch);
}

void Recording::call(std::shared_ptr<const LibraryWork> work) {
  std::lock_guard lock(mutex_);
  commands_.emplace_back(std::move(work));
}

void Recording::copy(ob_ptr dst, ob_ptr src, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  commands_.emplace_back(Copy{dst, src, bytes});
}

void Recording::fill(ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto* first = static_cast<const uint8_t*>(pattern);
  commands_.emplace_back(Fill{dst, {first, first + pattern_size}, bytes});
}

void Recording::seeds(ob_ptr dst, int64_t count, SeedSource source) {
  std::lock_guard lock(mutex_);
  commands_.emplace_back(Seeds{dst, count, std::move(source)});
}

void Recording::expect_assertions() {
  std::lock_guard lock(mutex_);
  asserts_ = true;
}

void Recording::keep(Allocation& allocation) {
  std::lock_guard lock(mutex_);
  if (!kept_.insert(&allocation).second) return;
  allocation.retain();
  allocation.hold();
}

void Recording::bake(Device& device) {
  std::lock_guard lock(mutex_);
  if (driver_ != nullptr) return;
  driver_ = &device.driver();
  if (driver_->capture_begin == nullptr) return;
  for (size_t first = 0; first < commands_.size(); ++first) {
    size_t end = first;
    while (end < commands_.size() && std::holds_alternative<Launch>(commands_[end])) ++end;
    if (end - first < 2) continue;
    void* graph = bake(device, first, end);
    if (graph == nullptr) return;
    baked_.push_back({first, end, graph});
    first = end;
  }
}

/// The launches as a graph of the driver, or nullptr if the device has no graphs.
void* Recording::bake(Device& device, size_t first, size_t end) const {
  Capture capture(device);
  if (!capture.begun()) return nullptr;
  for (size_t i = first; i < end; ++i) {
    const Launch& launch = std::get<Launch>(commands_[i]);
    const Arguments::Readable arguments = launch.arguments.read();
    const ob_status status = driver_->launch(capture.stream(), launch.kernel->get(), launch.global, launch.local,
                                             arguments.data(), static_cast<uint32_t>(arguments.size()));
    check(*driver_, status, "recording a kernel");
  }
  return capture.end();
}

/// Submits commands of a recording. Batches get numbers of their own: what was captured once may follow itself.
class Recording::Replay {
 public:
  explicit Replay(Stream& stream) : stream_(stream) {}

  void operator()(const Launch& captured) {
    Launch launch = captured;
    launch.batch = number_of(captured.batch);
    stream_.launch(launch);
  }
  void operator()(const Call& call) const { stream_.call(call); }
  void operator()(const Copy& copy) const { stream_.copy(OB_DEVICE_TO_DEVICE, copy.dst, copy.src, copy.bytes); }
  void operator()(const Fill& fill) const {
    stream_.fill(fill.dst, fill.pattern.data(), static_cast<uint32_t>(fill.pattern.size()), fill.bytes);
  }
  void operator()(const Seeds& seeds) const {
    SmallArray<int64_t, 8> values(static_cast<size_t>(seeds.count));
    seeds.source(values.data(), seeds.count);
    fill_seeds(stream_, seeds.dst, values.data(), seeds.count);
  }

 private:
  uint64_t number_of(uint64_t captured) {
    if (captured == 0) return 0;
    if (captured != captured_) batch_.renew();
    captured_ = captured;
    return batch_.number(0);
  }

  Stream& stream_;
  Batch batch_;
  uint64_t captured_ = 0;  // the number that `batch_` stands for
};

void Recording::replay(Stream& stream) const {
  Replay submit(stream);
  auto baked = baked_.begin();
  for (size_t i = 0; i < commands_.size(); ++i) {
    if (baked == baked_.end() || i != baked->first) {
      std::visit(submit, commands_[i]);
      continue;
    }
    stream.launch_graph(baked->graph);
    i = baked->end - 1;
    ++baked;
  }
  if (asserts_) stream.expect_assertions();
}

std::string Recording::text() const {
  std::lock_guard lock(mutex_);
  std::ostringstream out;
  struct Printer {
    std::ostringstream& out;
    void operator()(const Launch& x) const {
      out << "launch kernel " << x.kernel << " global " << x.global[0] << 'x' << x.global[1] << 'x' << x.global[2]
          << " local " << x.local[0] << 'x' << x.local[1] << 'x' << x.local[2] << " arguments " << x.arguments.size();
      if (x.batch != 0) out << " batch " << x.batch;
      out << '\n';
    }
    void operator()(const Call& x) const { out << "library function " << x->name() << '\n'; }
    void operator()(const Copy& x) const {
      out << "copy " << x.bytes << " bytes from " << x.src << " to " << x.dst << '\n';
    }
    void operator()(const Fill& x) const { out << "fill " << x.bytes << " bytes at " << x.dst << '\n'; }
    void operator()(const Seeds& x) const { out << "seeds " << x.count << " at " << x.dst << '\n'; }
  };
  for (const Command& command : commands_) std::visit(Printer{out}, command);
  return out.str();
}

Graph::~Graph() {
  if (in_forked_child.load(std::memory_order_relaxed)) {
    recording_.release();  // another thread of the parent may hold the locks that letting go takes
    return;
  }
  const Uninterrupted whole;
  try {
    reset();
  } catch (const Error& error) {
    std::fprintf(stderr, "outboard: when a graph was deleted: %s\n", error.what());
    recording_.release();  // queued work may still use what it holds
  }
}

Stream& Graph::begin(Stream& origin, int64_t pool, bool results_apart) {
  if (stream_ != nullptr) throw Error(OB_INVALID_ARGUMENT, "the graph has been captured: reset it first");
  if (origin.recording() != nullptr) throw Error(OB_INVALID_ARGUMENT, "the stream is being captured already");
  std::shared_ptr<Stream> stream = device_.graph_stream(pool);
  if (stream->recording() != nullptr) {
    throw Error(OB_INVALID_ARGUMENT, "the graph whose memory is to be shared is being captured");
  }
  stream->stand_for(origin);
  recording_ = std::make_unique<Recording>(results_apart);
  stream->record_to(recording_.get());
  stream_ = std::move(stream);
  capturing_ = true;
  return *stream_;
}

void Graph::end() {
  if (!capturing_) throw Error(OB_INVALID_ARGUMENT, "no capture is under way: begin one first");
  stream_->record_to(nullptr);
  capturing_ = false;
}

void Graph::replay(Stream& stream) {
  if (recording_ == nullptr || capturing_) throw Error(OB_INVALID_ARGUMENT, "nothing was captured: capture work first");
  refuse_if_unusable(device_.driver());  // the stream may be its successor's
  if (stream.recording() != nullptr) throw Error(OB_UNSUPPORTED, "a graph cannot be replayed into another one");
  recording_->bake(device_);
  stream_->stand_for(stream);
  recording_->replay(stream);
}

void Graph::reset() {
  if (capturing_) end();
  // Kept memory is let go of: nothing may be using it.
  if (stream_ != nullptr && !device_.was_reset()) stream_->finish();
  recording_ = nullptr;
  stream_ = nullptr;
}

int64_t Graph::pool() const { return stream_ == nullptr ? 0 : stream_->id(); }

std::string Graph::text() const { return recording_ == nullptr ? "" : recording_->text(); }

}  // namespace outboard
