// SPDX-License-Identifier: Apache-2.0
#include "runtime/graph.h"

#include <cstdio>
#include <cstring>
#include <sstream>

#include "runtime/allocation.h"
#include "runtime/device.h"
#include "runtime/driver_call.h"
#include "runtime/error.h"
#include "runtime/small_array.h"

namespace outboard {

void fill_seeds(Stream& stream, ob_ptr to, const int64_t* seeds, int64_t count) {
  for (int64_t i = 0; i < count; ++i, to += sizeof(int64_t)) {
    stream.fill(to, &seeds[i], sizeof(int64_t), sizeof(int64_t));
  }
}

Recording::~Recording() {
  for (Allocation* allocation : kept_) {
    allocation->let_go();
    allocation->release();
  }
}

void Recording::launch(Kernel& kernel, const uint64_t global[3], const uint32_t local[3], const ob_argument* arguments,
                       uint32_t count) {
  std::lock_guard lock(mutex_);
  Launch command{&kernel, {}, {}, static_cast<uint32_t>(values_.size()), count};
  std::copy_n(global, 3, command.global);
  std::copy_n(local, 3, command.local);
  for (uint32_t i = 0; i < count; ++i) {
    Value value{{0, 0}, arguments[i].size, static_cast<uint8_t>(arguments[i].is_pointer)};
    const size_t bytes = arguments[i].is_pointer != 0 ? sizeof(ob_ptr) : arguments[i].size;
    if (bytes > sizeof(value.bits)) throw Error(OB_UNSUPPORTED, "a graph cannot hold a kernel argument this large");
    std::memcpy(value.bits, arguments[i].value, bytes);
    values_.push_back(value);
  }
  commands_.emplace_back(command);
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

void Recording::submit(Stream& stream, const Launch& launch) const {
  SmallArray<ob_argument, 32> arguments(launch.count);
  for (uint32_t i = 0; i < launch.count; ++i) {
    const Value& value = values_[launch.first + i];
    arguments[i] = {value.is_pointer, value.size, value.bits};
  }
  stream.launch(*launch.kernel, launch.global, launch.local, arguments.data(), launch.count);
}

void Recording::submit(Stream& stream, const Copy& copy) const {
  stream.copy(OB_DEVICE_TO_DEVICE, copy.dst, copy.src, copy.bytes);
}

void Recording::submit(Stream& stream, const Fill& fill) const {
  stream.fill(fill.dst, fill.pattern.data(), static_cast<uint32_t>(fill.pattern.size()), fill.bytes);
}

void Recording::submit(Stream& stream, const Seeds& seeds) const {
  SmallArray<int64_t, 8> values(static_cast<size_t>(seeds.count));
  seeds.source(values.data(), seeds.count);
  fill_seeds(stream, seeds.dst, values.data(), seeds.count);
}

void Recording::replay(Stream& stream) const {
  for (const Command& command : commands_) {
    std::visit([&](const auto& each) { submit(stream, each); }, command);
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
          << " local " << x.local[0] << 'x' << x.local[1] << 'x' << x.local[2] << " arguments " << x.count << '\n';
    }
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
  try {
    reset();
  } catch (const Error& error) {
    std::fprintf(stderr, "outboard: when a graph was deleted: %s\n", error.what());
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
  if (stream.recording() != nullptr) throw Error(OB_UNSUPPORTED, "a graph cannot be replayed into another one");
  stream_->stand_for(stream);
  recording_->replay(stream);
}

void Graph::reset() {
  if (capturing_) end();
  if (stream_ != nullptr) stream_->finish();  // kept memory is let go of: nothing may be using it
  recording_ = nullptr;
  stream_ = nullptr;
}

int64_t Graph::pool() const { return stream_ == nullptr ? 0 : stream_->id(); }

std::string Graph::text() const { return recording_ == nullptr ? "" : recording_->text(); }

}  // namespace outboard
