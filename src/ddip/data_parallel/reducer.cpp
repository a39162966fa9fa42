#include "ddip/data_parallel/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ddip/base/error.h"

namespace ddip::data_parallel {
namespace {

using comm::Reduction;

// The backward that holds it is over: done, or broken off by an error.
struct Token {
  std::shared_ptr<std::atomic<bool>> broken;
  bool done = false;
  explicit Token(std::shared_ptr<std::atomic<bool>> flag) : broken(std::move(flag)) {}
  ~Token() {
    if (!done) broken->store(true);
  }
};

}  // namespace

std::shared_ptr<Reducer> Reducer::create(std::shared_ptr<Communicator> ranks, std::vector<at::Tensor> parameters,
                                         std::vector<std::string> names, ReducerOptions options) {
  std::shared_ptr<Reducer> reducer(
      new Reducer(std::move(ranks), std::move(parameters), std::move(names), std::move(options)));
  for (size_t index = 0; index < reducer->parameters_.size(); ++index) reducer->attach(index);
  return reducer;
}

Reducer::Reducer(std::shared_ptr<Communicator> ranks, std::vector<at::Tensor> parameters,
                 std::vector<std::string> names, ReducerOptions options)
    : ranks_(std::move(ranks)),
      parameters_(std::move(parameters)),
      names_(std::move(names)),
      options_(std::move(options)),
      compressor_(options_.compressor),
      views_(parameters_.size()),
      accumulators_(parameters_.size()),
      hooks_(parameters_.size()),
      broken_(std::make_shared<std::atomic<bool>>(false)),
      touched_(parameters_.size()),
      thread_(ranks_->thread()) {
  for (const at::Tensor& parameter : parameters_) {
    if (!parameter.is_floating_point() && !parameter.is_complex())
      throw ConfigError(fmt::format("parameter {} is of {}, which has no gradients", names_[gradients_.size()],
                                    c10::toString(parameter.scalar_type())));
    if (parameter.is_complex() && compressor_)
      throw ConfigError(fmt::format("parameter {} is complex, which no compression knows", names_[gradients_.size()]));
    auto same = [&](const at::TensorOptions& kind) {
      return kind.dtype() == parameter.dtype() && kind.device() == parameter.device();
    };
    auto kind = std::find_if(kinds_.begin(), kinds_.end(), same);
    if (kind == kinds_.end())
      kind = kinds_.insert(kinds_.end(), at::TensorOptions().dtype(parameter.dtype()).device(parameter.device()));
    gradients_.push_back({static_cast<size_t>(parameter.numel()), static_cast<size_t>(parameter.element_size()),
                          static_cast<int>(kind - kinds_.begin())});
  }
  // Before anything is known, the last layer is the first to be ready.
  std::vector<size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  plan(order, order.size());
  std::vector<Used> used;
  for (const at::Tensor& parameter : parameters_) used.push_back(parameter.requires_grad() ? Used::dense : Used::no);
  expected_.assign(parameters_.size(), false);
  last_used_ = used;
  expect(used);
  waited_before_ = ranks_->waited();
}

Reducer::~Reducer() {
  drain();  // its tasks use us
  for (size_t index = 0; index < accumulators_.size(); ++index) {
    if (accumulators_[index]) accumulators_[index]->del_post_hook(hooks_[index]);
  }
}

void Reducer::plan(const std::vector<size_t>& order, size_t used) {
  plan_ = plan_buckets(gradients_, order, options_.buckets, used);
  planned_order_ = order;
  planned_used_ = used;
  at::NoGradGuard no_grad;
  memory_.clear();
  flats_.clear();
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    at::Tensor memory = ranks_->empty({static_cast<int64_t>(plan_.total[kind])}, kinds_[kind]);
    // Shared memory is zero from the beginning, and touching it all would make it exist.
    if (!ranks_->capabilities().shared_tensors || !memory.is_cpu()) memory.zero_();
    memory_.push_back(memory);
  }
  auto part = [&](int kind, size_t begin, size_t elements) {
    return memory_[static_cast<size_t>(kind)].narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(elements));
  };
  for (const Bucket& bucket : plan_.buckets) flats_.push_back(part(bucket.kind, bucket.begin, bucket.elements));
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& parameter = parameters_[index];
    const at::Tensor& memory = memory_[static_cast<size_t>(gradients_[index].kind)];
    std::vector<int64_t> strides = parameter.is_non_overlapping_and_dense()
                                       ? parameter.strides().vec()
                                       : at::empty(parameter.sizes(), at::kMeta).strides().vec();
    // The same memory, but no view in autograd's eyes: optimizers detach gradients in place, which views refuse.
    int64_t begin = memory.storage_offset() + static_cast<int64_t>(plan_.begin[index]);
    views_[index] = at::empty({0}, memory.options()).set_(memory.storage(), begin, parameter.sizes(), strides);
  }
}

std::vector<int64_t> Reducer::order() const {
  std::vector<int64_t> result(planned_order_.begin(), planned_order_.end());
  result.push_back(static_cast<int64_t>(planned_used_));
  return result;
}

void Reducer::require_order(const std::vector<int64_t>& order) const {
  const auto count = static_cast<int64_t>(parameters_.size());
  std::vector<int64_t> sorted(order.begin(), order.empty() ? order.end() : order.end() - 1), every(parameters_.size());
  std::sort(sorted.begin(), sorted.end());
  std::iota(every.begin(), every.end(), 0);
  if (order.empty() || sorted != every || order.back() < 0 || order.back() > count)
    throw ConfigError("the order of gradients that was saved is not one of this model's parameters");
}

void Reducer::plan_in_order(std::vector<int64_t> order) {
  std::lock_guard lock(mutex_);
  drain();
  error_ = nullptr;  // of a step that is over
  plan_like_rank_0(std::move(order));
  keeps_order_ = true;
}

void Reducer::attach(size_t index) {
  const at::Tensor& parameter = parameters_[index];
  if (!parameter.requires_grad() || accumulators_[index]) return;
  accumulators_[index] = torch::autograd::impl::grad_accumulator(parameter);
  if (!accumulators_[index])
    throw ConfigError(fmt::format("{} is no parameter: it is computed from others", names_[index]));
  auto hook = [weak = weak_from_this(), index](const auto& outputs, const auto&) {
    if (auto reducer = weak.lock()) reducer->guarded([&] { reducer->on_gradient(index); });
    return outputs;
  };
  hooks_[index] =
      accumulators_[index]->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(hook)));
}

bool Reducer::fits(const std::vector<at::Tensor>& parameters) {
  if (parameters.size() != parameters_.size()) return false;
  for (size_t index = 0; index < parameters.size(); ++index) {
    const at::Tensor& now = parameters[index];
    const Gradient& gradient = gradients_[index];
    const at::TensorOptions& kind = kinds_[static_cast<size_t>(gradient.kind)];
    if (!now.is_same(parameters_[index]) || static_cast<size_t>(now.numel()) != gradient.elements ||
        now.dtype() != kind.dtype() || now.device() != kind.device())
      return false;
    if (!now.requires_grad()) {
      if (is_fixed() && expected_[index]) return false;  // everybody would wait for it, and then complain
      continue;
    }
    if (!accumulators_[index]) {
      if (is_fixed()) return false;  // nobody would expect it
      attach(index);
    } else if (torch::autograd::impl::grad_accumulator(now) != accumulators_[index])
      return false;
  }
  return true;
}

void Reducer::expect(const std::vector<Used>& used) {
  for (size_t index = 0; index < used.size(); ++index) expected_[index] = used[index] == Used::dense;
  travelling_.clear();
  for (size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) {
    const auto& members = plan_.buckets[bucket].members;
    if (std::any_of(members.begin(), members.end(), [&](size_t member) { return expected_[member]; }))
      travelling_.push_back(bucket);
  }
}

void Reducer::note_forward() {
  if (forward_begun_ == Clock::time_point{}) forward_begun_ = Clock::now();
}

bool Reducer::lies_in_slot(size_t index) const {
  const at::Tensor& gradient = parameters_[index].grad();
  return gradient.defined() && !gradient.is_sparse() && gradient.data_ptr() == views_[index].data_ptr() &&
         gradient.strides() == views_[index].strides();
}

bool Reducer::is_sparse(size_t index) const {
  const at::Tensor& gradient = parameters_[index].grad();
  return gradient.defined() && gradient.is_sparse();
}

// The gradient into the shared memory, and there it stays.
void Reducer::move_to_slot(size_t index) {
  if (lies_in_slot(index)) return;
  at::NoGradGuard no_grad;
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (!gradient.defined()) {
    views_[index].zero_();
    return;
  }
  views_[index].copy_(gradient);
  stats_.copied_bytes += gradient.nbytes();
  if (gradient.requires_grad())
    write_back_[index] = true;  // it has a history (create_graph) that a view would not have
  else
    gradient = views_[index];
}

void Reducer::on_gradient(size_t index) {
  if (retired_) return;
  std::lock_guard lock(mutex_);
  if (!sync_) {
    touched_[index] = true;
    return;
  }
  if (broken_->exchange(false) && active_) {
    drain();
    active_ = false;
  }
  if (!parameters_[index].grad().defined())
    throw ConfigError(
        fmt::format("the gradient of {} is gone before it was averaged: an optimizer that steps inside backward trains "
                    "each rank alone",
                    names_[index]));
  if (!active_) begin_backward();
  size_t bucket = plan_.bucket_of[index];
  if (ready_[index]) {
    if (launched_[bucket])
      throw ConfigError(
          fmt::format("parameter {} got a gradient twice in one backward, and the first had left; checkpoint with "
                      "use_reentrant=False",
                      names_[index]));
  } else {
    ready_[index] = true;
    order_.push_back(index);
    stats_.gradient_bytes += parameters_[index].nbytes();
  }
  if (!expected_[index]) {
    if (is_fixed() && last_used_[index] != Used::sparse)
      throw ConfigError(fmt::format("parameter {} got a gradient that nobody expected; {}", names_[index],
                                    options_.static_graph
                                        ? "static_graph=True says that every backward is like the first"
                                        : "find_unused=True allows that"));
    return;  // its bucket may have left
  }
  if (is_sparse(index)) {
    at::NoGradGuard no_grad;
    views_[index].zero_();
  } else {
    move_to_slot(index);
  }
  if (missing_[bucket] > 0 && --missing_[bucket] == 0) launch_complete();
}

void Reducer::begin_backward() {
  first_gradient_ = Clock::now();
  reset();
  // A step before this one may have ended in the middle, under this plan or another.
  if (compressor_) compressor_->rollback();
  rescale_ = 1.0;
  if (joining_ && !taking_part_) {
    std::vector<Doing> all = announce(Doing::backward);
    auto with_data = std::count(all.begin(), all.end(), Doing::backward);
    if (!divide_by_all_) rescale_ = static_cast<double>(ranks_->world()) / static_cast<double>(with_data);
  }
  active_ = true;
  if (taking_part_) return;
  auto token = std::make_shared<Token>(broken_);
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this(), token] {
    token->done = true;
    self->guarded([&] { self->finish(); });
  });
}

void Reducer::guarded(const std::function<void()>& body) const {
  try {
    body();
  } catch (...) {
    options_.rethrow(std::current_exception());
  }
}

void Reducer::reset() {
  ready_.assign(parameters_.size(), false);
  write_back_.assign(parameters_.size(), false);
  launched_.assign(plan_.buckets.size(), false);
  missing_.assign(plan_.buckets.size(), 0);
  for (size_t index = 0; index < parameters_.size(); ++index) missing_[plan_.bucket_of[index]] += expected_[index];
  order_.clear();
  next_ = 0;
  error_ = nullptr;
  finite_ = true;
  sums_.clear();
  stats_.timeline.clear();
}

void Reducer::launch_complete() {
  while (next_ < travelling_.size() && missing_[travelling_[next_]] == 0)
    launch(travelling_[next_++], expected_, false);
}

// `in_it`: whose gradients it carries, by parameter. The others' must not lie where everybody reads and writes.
void Reducer::launch(size_t bucket, const std::vector<bool>& in_it, bool waiting) {
  launched_[bucket] = true;
  auto pieces = std::make_shared<std::vector<Piece>>();
  std::vector<size_t> members;
  for (size_t member : plan_.buckets[bucket].members) {
    if (in_it[member]) {
      members.push_back(member);
      if (compressor_) pieces->push_back({member, flat_of(member), parameters_[member].sizes().vec()});
    } else if (lies_in_slot(member)) {
      at::NoGradGuard no_grad;
      parameters_[member].mutable_grad() = parameters_[member].grad().clone();
    }
  }
  auto task = [this, bucket, pieces, members = std::move(members), ready = Clock::now()] {
    auto begun = Clock::now();
    at::NoGradGuard no_grad;
    const at::Tensor& flat = flats_[bucket];
    if (compressor_) {
      // First: what is left over goes with a step in which another number of ranks may have data, and weighs the same.
      if (rescale_ != 1.0) flat.mul_(rescale_);
      Outcome outcome = compressor_->reduce(*ranks_, *pieces);
      stats_.sent_bytes += outcome.bytes;
      if (!outcome.finite) finite_ = false;
    } else {
      ranks_->all_reduce(flat, Reduction::mean);
      stats_.sent_bytes += flat.nbytes();
      if (rescale_ != 1.0) flat.mul_(rescale_);
      note_sum(flat, members);
    }
    auto ended = Clock::now();
    stats_.busy_seconds += seconds(ended - begun);
    stats_.timeline.push_back({bucket, since_first(ready), since_first(begun), since_first(ended)});
  };
  on_thread(std::move(task), waiting);
}

at::Tensor Reducer::flat_of(size_t index) const {
  return memory_[static_cast<size_t>(gradients_[index].kind)].narrow(0, static_cast<int64_t>(plan_.begin[index]),
                                                                     static_cast<int64_t>(gradients_[index].elements));
}

void Reducer::on_thread(std::function<void()> task, bool waiting) {
  auto guarded = [this, task = std::move(task)] {
    if (error_) return;  // what follows an error would wait for nobody
    try {
      task();
    } catch (...) {
      error_ = std::current_exception();
    }
  };
  if (waiting)
    thread_.run(guarded);
  else
    thread_.post(std::move(guarded));
}

void Reducer::drain() {
  thread_.run([] {});
}

double Reducer::since_first(Clock::time_point time) const { return seconds(time - first_gradient_); }

bool Reducer::is_fixed() const { return !options_.find_unused || (options_.static_graph && rebuilt_); }

ReducerStats Reducer::take_stats() {
  std::lock_guard lock(mutex_);
  ReducerStats result = stats_;
  result.waited = ranks_->waited();
  for (size_t rank = 0; rank < result.waited.size(); ++rank) {
    double now = result.waited[rank];
    result.waited[rank] -= waited_before_[rank];
    waited_before_[rank] = now;
  }
  stats_ = {};
  return result;
}

}  // namespace ddip::data_parallel
