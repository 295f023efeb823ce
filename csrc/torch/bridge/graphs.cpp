// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/graphs.h"

#include <ATen/core/GraphImplInterface.h>

#include <fstream>
#include <memory>
#include <string>

#include "runtime/streams/graph.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"

namespace outboard::aten {
namespace {

/// Capture and replay of what goes to the current stream, as `torch.cuda.CUDAGraph`. The modes that tell what other
/// threads may do meanwhile make no difference: only the capturing thread's stream is recorded.
class DeviceGraph final : public at::GraphImplInterface {
 public:
  explicit DeviceGraph(const at::GraphImplArgs&) {}
  ~DeviceGraph() override {
    if (graph_ != nullptr && graph_->capturing()) restore_stream();
  }

  /// `pool`: as `pool()` of a living graph, or zeros. Its first number is 1 if memory of tensors made inside is to be
  /// apart from the graph's, see `Graph::begin`.
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override {
    Device& on = device(current_device());
    translate_errors([&] {
      if (graph_ == nullptr || &graph_->device() != &on) graph_ = std::make_unique<Graph>(on);
      Stream& origin = current_stream(static_cast<c10::DeviceIndex>(on.index()));
      Stream& stream = graph_->begin(origin, static_cast<int64_t>(pool.second), /*results_apart=*/pool.first == 1);
      before_ = &origin;
      Runtime::get().set_current_stream(stream);
    });
  }

  void capture_end() override {
    translate_errors([&] {
      captured().end();
      restore_stream();
    });
  }

  /// Nothing to do: a recording is ready when it ends.
  void instantiate() override {
    TORCH_CHECK(!captured().capturing(), "instantiate() was called while the graph is captured: call capture_end()");
  }

  void replay() override {
    Graph& graph = captured();
    const auto index = static_cast<c10::DeviceIndex>(graph.device().index());
    translate_errors([&] { graph.replay(current_stream(index)); });
  }

  void reset() override {
    if (graph_ == nullptr) return;
    if (graph_->capturing()) restore_stream();
    translate_errors([&] { graph_->reset(); });
  }

  at::MempoolId_t pool() const override {
    TORCH_CHECK(graph_ != nullptr && graph_->pool() != 0, "pool() needs a graph that was captured");
    return {0, static_cast<at::CaptureId_t>(graph_->pool())};
  }

  void enable_debug_mode() override { debug_ = true; }

  /// One line of text per command.
  void debug_dump(const std::string& path) override {
    TORCH_CHECK(debug_, "call enable_debug_mode() before debug_dump()");
    std::ofstream file(path);
    file << captured().text();
    file.close();
    TORCH_CHECK(file.good(), "cannot write ", path);
  }

 private:
  Graph& captured() {
    TORCH_CHECK(graph_ != nullptr, "nothing was captured: call capture_begin() first");
    return *graph_;
  }

  void restore_stream() { Runtime::get().set_current_stream(*before_); }

  std::unique_ptr<Graph> graph_;
  Stream* before_ = nullptr;
  bool debug_ = false;
};

}  // namespace

void register_graphs() {
  const std::string name = c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/false);
  if (at::GraphImplRegistry()->Has(name)) return;
  at::GraphImplRegistry()->Register(
      name, [](const at::GraphImplArgs& arguments) { return std::make_unique<DeviceGraph>(arguments); });
}

}  // namespace outboard::aten
