#include "ddip/data_parallel/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ddip/base/error.h"

namespace ddip::data_parallel {
namespace {

using comm::Reduction;

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

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
    if (!now.requires_grad()) continue;
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
    if (compressor_) compressor_->rollback();
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
  for (size_t member : plan_.buckets[bucket].members) {
    if (in_it[member]) {
      if (compressor_) pieces->push_back({member, flat_of(member), parameters_[member].sizes().vec()});
    } else if (lies_in_slot(member)) {
      at::NoGradGuard no_grad;
      parameters_[member].mutable_grad() = parameters_[member].grad().clone();
    }
  }
  auto task = [this, bucket, pieces, ready = Clock::now()] {
    auto begun = Clock::now();
    at::NoGradGuard no_grad;
    const at::Tensor& flat = flats_[bucket];
    if (compressor_) {
      Outcome outcome = compressor_->reduce(*ranks_, *pieces);
      stats_.sent_bytes += outcome.bytes;
      if (!outcome.finite) finite_ = false;
    } else {
      ranks_->all_reduce(flat, Reduction::mean);
      stats_.sent_bytes += flat.nbytes();
    }
    if (rescale_ != 1.0) flat.mul_(rescale_);
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

void Reducer::finish() {
  std::lock_guard lock(mutex_);
  at::NoGradGuard no_grad;
  auto ended = Clock::now();
  stats_.backward_ended = since_first(ended);

  std::string without;  // a parameter that should have got a gradient
  std::vector<Used> used(parameters_.size(), Used::no);
  for (size_t index = 0; index < parameters_.size(); ++index) {
    if (ready_[index] || (touched_[index] && parameters_[index].grad().defined()))
      used[index] = is_sparse(index) ? Used::sparse : Used::dense;
    if (ready_[index] || !expected_[index]) continue;
    if (used[index] == Used::no && without.empty()) without = names_[index];
    // What it has from earlier backwards counts; the other ranks have it too, or add theirs.
    if (is_sparse(index))
      views_[index].zero_();
    else
      move_to_slot(index);
    missing_[plan_.bucket_of[index]] -= 1;
  }
  for (; next_ < travelling_.size(); ++next_) launch(travelling_[next_], expected_, next_ + 1 == travelling_.size());
  const bool fixed = is_fixed();
  if (!fixed) agree_on_used(used);
  drain();
  if (error_) drop(error_);
  if (fixed) {
    for (size_t index = 0; index < used.size(); ++index) {
      bool sparse = last_used_[index] == Used::sparse || is_sparse(index);
      used[index] = sparse ? Used::sparse : expected_[index] ? Used::dense : Used::no;
    }
  } else {
    reduce_late(used);
  }
  reduce_sparse(used);
  if (error_) drop(error_);
  install(used);
  touched_.assign(parameters_.size(), false);
  active_ = false;

  if (compressor_) {
    if (finite_)
      compressor_->commit();
    else
      compressor_->rollback();
  }
  if (!finite_) {
    ++stats_.skipped;
    if (options_.keep_nonfinite)
      spoil_gradients();
    else
      drop_gradients();
  }
  if (!fixed) {
    auto is_dense = [&](size_t index) { return used[index] == Used::dense; };
    bool as_expected = true;
    for (size_t index = 0; index < used.size(); ++index) as_expected &= is_dense(index) == expected_[index];
    // Another set than expected may be the beginning of something new, or one of several in turn: until it comes twice
    // running, nothing is expected and everything waits for the end.
    if (!as_expected)
      expect(options_.static_graph || used == last_used_ ? used : std::vector<Used>(used.size(), Used::no));
    last_used_ = used;
  }
  if (!rebuilt_) rebuild();
  ++stats_.steps;
  auto now = Clock::now();
  stats_.exposed_seconds += seconds(now - ended);
  stats_.compute_seconds += seconds(ended - (forward_begun_ == Clock::time_point{} ? first_gradient_ : forward_begun_));
  forward_begun_ = {};
  if (fixed && !without.empty() && !taking_part_)
    throw ConfigError(fmt::format(
        "parameter {} got no gradient in this backward; {}", without,
        options_.static_graph ? "static_graph=True says that it always does" : "find_unused=True allows that"));
}

void Reducer::agree_on_used(std::vector<Used>& used) {
  static_assert(sizeof(Used) == 1);
  at::Tensor flags = at::from_blob(used.data(), {static_cast<int64_t>(used.size())}, at::kByte);
  if (!kinds_.empty() && !kinds_[0].device().is_cpu()) {
    at::Tensor there = flags.to(kinds_[0].device());
    on_thread([&] { ranks_->all_reduce(there, Reduction::max); }, true);
    flags.copy_(there);
    return;
  }
  on_thread([&] { ranks_->all_reduce(flags, Reduction::max); }, true);
}

// What was used and not expected: with its bucket, if that has not left already; else by itself.
void Reducer::reduce_late(const std::vector<Used>& used) {
  std::vector<bool> late(used.size());
  std::vector<size_t> alone;
  std::vector<bool> buckets(plan_.buckets.size());
  for (size_t index = 0; index < used.size(); ++index) {
    if (used[index] != Used::dense || expected_[index]) continue;
    size_t bucket = plan_.bucket_of[index];
    if (launched_[bucket]) {
      alone.push_back(index);
      continue;
    }
    late[index] = true;
    buckets[bucket] = true;
    move_to_slot(index);
  }
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    if (buckets[bucket]) launch(bucket, late, true);
  }
  for (size_t index : alone) {
    at::Tensor& gradient = parameters_[index].mutable_grad();
    at::Tensor mean = gradient.defined() ? gradient.detach().clone() : at::zeros_like(parameters_[index]);
    on_thread(
        [&] {
          ranks_->all_reduce(mean, Reduction::mean);
          if (rescale_ != 1.0) mean.mul_(rescale_);
          stats_.sent_bytes += mean.nbytes();
        },
        true);
    if (gradient.defined() && gradient.requires_grad())
      gradient.data().copy_(mean);
    else
      gradient = mean;
  }
}

void Reducer::reduce_sparse(const std::vector<Used>& used) {
  for (size_t index = 0; index < used.size(); ++index) {
    if (used[index] != Used::sparse) continue;
    const at::Tensor& parameter = parameters_[index];
    at::Tensor& gradient = parameter.mutable_grad();
    at::Tensor sum;
    // Where it was expected to be dense, what is dense of it has gone with its bucket.
    if (!gradient.defined() || (expected_[index] && !gradient.is_sparse())) {
      // as many sparse dimensions as an embedding's gradient has
      at::Tensor none = at::zeros({1, 0}, at::TensorOptions().dtype(at::kLong).device(parameter.device()));
      std::vector<int64_t> values = parameter.sizes().vec();
      values[0] = 0;
      sum = at::sparse_coo_tensor(none, at::zeros(values, parameter.options()), parameter.sizes());
    } else {
      sum = gradient.is_sparse() ? gradient.coalesce() : gradient.to_sparse(1);
    }
    on_thread([&] { ranks_->all_reduce(sum, Reduction::sum); }, true);
    if (error_) return;
    gradient = sum.mul(rescale_ / ranks_->world());
    if (expected_[index] && views_[index].count_nonzero().item<int64_t>() > 0) gradient = views_[index] + gradient;
  }
}

void Reducer::install(const std::vector<Used>& used) {
  for (size_t index = 0; index < used.size(); ++index) {
    if (used[index] != Used::dense) continue;
    at::Tensor& gradient = parameters_[index].mutable_grad();
    if (write_back_[index])
      gradient.data().copy_(views_[index]);
    else if (!gradient.defined())
      gradient = views_[index];
  }
}

// Buckets in the order in which the gradients came, as rank 0 saw it.
void Reducer::rebuild() {
  std::vector<int64_t> order(order_.begin(), order_.end());
  for (size_t index = parameters_.size(); index-- > 0;) {
    if (!ready_[index]) order.push_back(static_cast<int64_t>(index));
  }
  order.push_back(static_cast<int64_t>(order_.size()));  // how many were used
  if (ranks_->world() > 1) {
    at::Tensor agreed = at::from_blob(order.data(), {static_cast<int64_t>(order.size())}, at::kLong);
    at::Tensor there = kinds_.empty() ? agreed : agreed.to(kinds_[0].device());
    on_thread([&] { ranks_->broadcast(there, 0); }, true);
    if (error_) drop(error_);
    if (!there.is_same(agreed)) agreed.copy_(there);
  }
  size_t used = static_cast<size_t>(order.back());
  order.pop_back();
  on_thread([&] { plan({order.begin(), order.end()}, used); }, true);
  if (error_) drop(error_);
  std::vector<Used> same;
  for (bool one : expected_) same.push_back(one ? Used::dense : Used::no);
  expect(same);
  rebuilt_ = true;
}

void Reducer::drop_gradients() {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
}

// What was not finite on one rank is so on all: a GradScaler must skip the step everywhere.
void Reducer::spoil_gradients() {
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() && !gradient.is_sparse()) gradient.data().fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

// Some gradients are means, some are not: better none than half of them.
void Reducer::drop(std::exception_ptr error) {
  if (compressor_) compressor_->rollback();
  drop_gradients();
  touched_.assign(parameters_.size(), false);
  active_ = false;
  std::rethrow_exception(std::move(error));
}

bool Reducer::is_fixed() const { return !options_.find_unused || (options_.static_graph && rebuilt_); }

void Reducer::begin_join(bool divide_by_all) {
  joining_ = true;
  divide_by_all_ = divide_by_all;
  newest_ = 0;
}

std::vector<Reducer::Doing> Reducer::announce(Doing doing) {
  at::Tensor mine = at::full({1}, static_cast<int>(doing), at::kInt), all;
  if (!kinds_.empty()) mine = mine.to(kinds_[0].device());
  thread_.run([&] { all = ranks_->all_gather(mine).cpu().view({-1}); });
  std::vector<Doing> result;
  Doing common = Doing::nothing;
  for (int rank = 0; rank < ranks_->world(); ++rank) {
    Doing theirs = static_cast<Doing>(all[rank].item<int>());
    result.push_back(theirs);
    if (theirs == Doing::nothing) continue;
    if (common == Doing::nothing) newest_ = rank;
    if (common != Doing::nothing && common != theirs)
      throw ConfigError("join: one rank is in forward, another in backward; all must do the same number of each");
    common = theirs;
  }
  return result;
}

int Reducer::announce_forward() {
  announce(Doing::forward);
  return newest_;
}

int Reducer::end_join(const std::function<void(int root)>& on_forward) {
  for (;;) {
    std::vector<Doing> all = announce(Doing::nothing);
    auto busy = std::find_if(all.begin(), all.end(), [](Doing doing) { return doing != Doing::nothing; });
    if (busy == all.end()) break;
    if (*busy == Doing::forward)
      on_forward(newest_);
    else
      take_part_in_backward(static_cast<int>(std::count(all.begin(), all.end(), Doing::backward)));
  }
  joining_ = false;
  return newest_;
}

// With nothing of its own, in everything the others do in finish().
void Reducer::take_part_in_backward(int with_data) {
  // Its own gradients, if it kept some, are of a step that is over.
  drop_gradients();
  taking_part_ = true;
  begin_backward();
  if (!divide_by_all_) rescale_ = static_cast<double>(ranks_->world()) / with_data;
  try {
    finish();
  } catch (...) {
    taking_part_ = false;
    throw;
  }
  taking_part_ = false;
  drop_gradients();
}

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
