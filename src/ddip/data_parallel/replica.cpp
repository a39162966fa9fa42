#include "ddip/data_parallel/replica.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/data_parallel/compress/residuals.h"
#include "ddip/data_parallel/replicas.h"

namespace ddip::data_parallel {
namespace {

constexpr const char* kOrder = "order";

// To where the parameters are now: a number is a place in the list, which a part that comes or goes changes. What is
// kept of a parameter that has gone goes with it, also if another has its name or its place.
Kept moved(const Kept& kept, const std::vector<at::Tensor>& before, const std::vector<at::Tensor>& now) {
  std::unordered_map<const c10::TensorImpl*, size_t> place;
  for (size_t index = 0; index < now.size(); ++index) place[now[index].unsafeGetTensorImpl()] = index;
  Kept result;
  for (const auto& [kind, of_parameter] : kept) {
    for (const auto& [number, tensor] : of_parameter) {
      auto found = place.find(before[number].unsafeGetTensorImpl());
      if (found != place.end()) result[kind][found->second] = tensor;
    }
  }
  return result;
}

}  // namespace

Replica::Replica(Ranks ranks, Model model, ReducerOptions options, bool broadcast_buffers)
    : current_(std::move(ranks)),
      model_(std::move(model)),
      options_(std::move(options)),
      broadcast_buffers_(broadcast_buffers) {
  plan();
}

void Replica::plan() {
  ranks_ = current_();
  std::vector<at::Tensor> parameters = model_.parameters();
  std::vector<std::string> names = model_.names();
  in_order([&] {
    require_same_shapes(*ranks_, names, parameters);
    require_same_frozen(*ranks_, names, parameters);
  });
  broadcast(0);
  if (options_.compressor && reducer_) {
    reducer_->drain();  // of the old plan: what is under way has the old numbers
    options_.compressor->set_kept(moved(options_.compressor->kept(), reducer_->parameters(), parameters));
  }
  reducer_ = Reducer::create(ranks_, std::move(parameters), std::move(names), options_);
  reducer_->set_sync(sync_);
}

void Replica::broadcast(int root) {
  std::vector<at::Tensor> all = model_.parameters();
  for (const at::Tensor& buffer : model_.buffers()) all.push_back(buffer);
  in_order([&] { broadcast_all(*ranks_, all, root); });
}

// Behind what backwards have under way: a forward may come in the middle of one (checkpointing computes it again).
void Replica::in_order(const std::function<void()>& body) { ranks_->thread().run(body); }

void Replica::retire() {
  retired_ = true;
  reducer_->retire();
}

void Replica::sync_buffers(int root) {
  if (!broadcast_buffers_) return;
  std::vector<at::Tensor> buffers = model_.buffers();
  if (!buffers.empty()) in_order([&] { broadcast_all(*ranks_, buffers, root); });
}

void Replica::refresh() {
  // Only where all ranks come: an evaluation may be one rank's own business, and in join they are at different places.
  if (!at::GradMode::is_enabled() || c10::InferenceMode::is_enabled()) return;
  if (reducer_->joining()) {
    if (!reducer_->fits(model_.parameters()))
      throw ConfigError("the model has changed inside join, where the ranks cannot plan anew: change it before");
    return;
  }
  if (retired_) throw ConfigError("this model was wrapped again: use the new DataParallel, not the old one");
  if (current_() != ranks_ || !reducer_->fits(model_.parameters())) plan();
  if (sync_ && model_.training()) reducer_->note_forward();
}

void Replica::before_forward() {
  refresh();
  if (!sync_ || !at::GradMode::is_enabled() || !model_.training()) return;
  sync_buffers(reducer_->joining() ? reducer_->announce_forward() : 0);
}

void Replica::set_sync(bool sync) {
  sync_ = sync;
  reducer_->set_sync(sync);
}

void Replica::begin_join(bool divide_by_all) {
  refresh();  // inside it is too late to plan
  reducer_->begin_join(divide_by_all);
}

int Replica::end_join() {
  int newest = reducer_->end_join([this](int root) { sync_buffers(root); });
  broadcast(newest);
  return newest;
}

tensors::NamedTensors Replica::compression_state() {
  tensors::NamedTensors state;
  if (!options_.compressor) return state;
  reducer_->drain();
  for (const auto& [kind, of_parameter] : options_.compressor->kept()) {
    for (const auto& [number, tensor] : of_parameter)
      state.emplace_back(fmt::format("{}.{}", kind, reducer_->names()[number]), tensor);
  }
  if (!state.empty()) state.emplace_back(kOrder, at::tensor(reducer_->order(), at::kLong));
  return state;
}

void Replica::load_compression_state(const tensors::NamedTensors& state) {
  if (!options_.compressor && !state.empty())
    throw ConfigError("this model's gradients travel whole: it cannot take what compression has left over");
  if (!options_.compressor) return;
  if (!reducer_->fits(model_.parameters())) plan();
  std::vector<int64_t> order = reducer_->order();
  bool has_order = false;
  Kept kept;
  std::string complaint;
  try {
    kept = taken(state, order);
  } catch (const ConfigError& error) {
    complaint = error.what();
  }
  in_order([&] {
    require_no_complaint(*ranks_, complaint, reducer_->parameters());
    has_order = on_any(*ranks_, !state.empty(), reducer_->parameters());
  });
  if (has_order) reducer_->plan_in_order(std::move(order));
  options_.compressor->set_kept(std::move(kept));
}

Kept Replica::taken(const tensors::NamedTensors& state, std::vector<int64_t>& order) const {
  Kept kept;
  for (const auto& [key, tensor] : state) {
    if (key == kOrder) {
      at::Tensor numbers = tensor.to(at::kCPU, at::kLong).contiguous();
      order.assign(numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel());
      reducer_->require_order(order);
      continue;
    }
    const size_t dot = key.find('.');
    const auto& names = reducer_->names();
    const auto name = std::find(names.begin(), names.end(), dot == std::string::npos ? "" : key.substr(dot + 1));
    if (name == names.end())
      throw ConfigError(fmt::format("left over by compression: {} is of no parameter here", key));
    const auto number = static_cast<size_t>(name - names.begin());
    const at::Tensor& parameter = reducer_->parameters()[number];
    if (key.starts_with(Residuals::kKind) && tensor.numel() != parameter.numel())
      throw ConfigError(fmt::format("left over by compression: {} has {} numbers, the parameter {}", key,
                                    tensor.numel(), parameter.numel()));
    kept[key.substr(0, dot)][number] = tensor.detach().to(parameter.device(), at::kFloat, false, /*copy=*/true);
  }
  return kept;
}

std::vector<std::string> Replica::differing(const std::vector<std::string>& buffer_names) {
  std::vector<at::Tensor> all = model_.parameters();
  std::vector<std::string> names = model_.names(), found;
  for (const at::Tensor& buffer : model_.buffers()) all.push_back(buffer);
  names.insert(names.end(), buffer_names.begin(), buffer_names.end());
  // Not a new plan, which would make them equal: only the ranks of now, if the group was made again.
  const auto ranks = current_();
  std::vector<bool> equal = are_equal(*ranks, all);
  for (size_t index = 0; index < all.size(); ++index) {
    if (!equal[index]) found.push_back(names[index]);
  }
  return found;
}

}  // namespace ddip::data_parallel
