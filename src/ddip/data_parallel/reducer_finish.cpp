// The end of a backward: what is left travels, the ranks agree on what was used, and the step is kept or dropped.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ddip/base/error.h"
#include "ddip/data_parallel/compress/residuals.h"
#include "ddip/data_parallel/reducer.h"

namespace ddip::data_parallel {

using comm::Reduction;

void Reducer::finish() {
  std::lock_guard lock(mutex_);
  std::string without;
  try {
    without = finish_step();
  } catch (...) {
    drop(std::current_exception());  // whatever it was: the next backward must find no step under way
  }
  if (!without.empty() && !taking_part_)
    throw ConfigError(fmt::format(
        "parameter {} got no gradient in this backward; {}", without,
        options_.static_graph ? "static_graph=True says that it always does" : "find_unused=True allows that"));
}

std::string Reducer::finish_step() {
  at::NoGradGuard no_grad;
  auto ended = Clock::now();
  stats_.backward_ended = since_first(ended);

  const bool fixed = is_fixed();
  std::string without;                                 // a parameter that should have got a gradient
  std::vector<std::pair<size_t, at::Tensor>> earlier;  // gradients that travel, and come back if nobody used them
  std::vector<Used> used(parameters_.size(), Used::no);
  for (size_t index = 0; index < parameters_.size(); ++index) {
    if (ready_[index] || (touched_[index] && parameters_[index].grad().defined()))
      used[index] = is_sparse(index) ? Used::sparse : Used::dense;
    if (ready_[index] || !expected_[index]) continue;
    if (used[index] == Used::no && without.empty()) without = names_[index];
    // What it has from earlier backwards counts; the other ranks have it too, or add theirs.
    if (used[index] == Used::no && !fixed && parameters_[index].grad().defined() && !is_sparse(index))
      earlier.emplace_back(index, parameters_[index].grad().detach().clone());
    if (is_sparse(index))
      views_[index].zero_();
    else
      move_to_slot(index);
    missing_[plan_.bucket_of[index]] -= 1;
  }
  for (; next_ < travelling_.size(); ++next_) launch(travelling_[next_], expected_, next_ + 1 == travelling_.size());
  // What is sparse is agreed on once even where all is expected: a rank without data has nothing to see it by.
  if (!fixed || !rebuilt_) agree_on_used(used);
  drain();
  throw_error();
  if (fixed) {
    for (size_t index = 0; index < used.size(); ++index) {
      if (used[index] == Used::sparse || is_sparse(index)) last_used_[index] = Used::sparse;
      used[index] = last_used_[index] == Used::sparse ? Used::sparse : expected_[index] ? Used::dense : Used::no;
    }
  } else {
    reduce_late(used);
  }
  reduce_sparse(used);
  throw_error();
  look_at_sums();
  install(used);
  for (const auto& [index, gradient] : earlier) {
    if (used[index] == Used::no) parameters_[index].grad().data().copy_(gradient);
  }
  if (compressor_) {
    for (size_t index = 0; index < used.size(); ++index) {
      if (expected_[index] && used[index] == Used::no) compressor_->rollback(index);
    }
  }
  touched_.assign(parameters_.size(), false);
  active_ = false;
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
  // Nothing waits for another rank from here on: the step is kept on all ranks, or dropped on all.
  if (compressor_) {
    if (finite_)
      compressor_->commit();
    else
      compressor_->rollback();
  }
  if (!finite_) {
    ++stats_.nonfinite;
    if (compressor_ || !options_.keep_nonfinite) ++stats_.skipped;
    if (!options_.keep_nonfinite)
      drop_gradients();
    else if (compressor_)
      spoil_gradients();
  }
  ++stats_.steps;
  auto now = Clock::now();
  stats_.exposed_seconds += seconds(now - ended);
  stats_.compute_seconds += seconds(ended - (forward_begun_ == Clock::time_point{} ? first_gradient_ : forward_begun_));
  forward_begun_ = {};
  return fixed ? without : "";
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
          note_sum(mean, {});
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
    note_sum(gradient._values(), {});
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
  rebuilt_ = true;
  if (keeps_order_) return;
  std::vector<int64_t> order(order_.begin(), order_.end());
  for (size_t index = parameters_.size(); index-- > 0;) {
    if (!ready_[index]) order.push_back(static_cast<int64_t>(index));
  }
  order.push_back(static_cast<int64_t>(order_.size()));  // how many were used
  plan_like_rank_0(std::move(order));
}

void Reducer::plan_like_rank_0(std::vector<int64_t> order) {
  if (ranks_->world() > 1) {
    at::Tensor agreed = at::from_blob(order.data(), {static_cast<int64_t>(order.size())}, at::kLong);
    at::Tensor there = kinds_.empty() ? agreed : agreed.to(kinds_[0].device());
    on_thread([&] { ranks_->broadcast(there, 0); }, true);
    throw_error();
    if (!there.is_same(agreed)) agreed.copy_(there);
  }
  size_t used = static_cast<size_t>(order.back());
  order.pop_back();
  on_thread([&] { plan({order.begin(), order.end()}, used); }, true);
  throw_error();
  std::vector<Used> same;
  for (bool one : expected_) same.push_back(one ? Used::dense : Used::no);
  expect(same);
}

// `members`: whose memory it is, where that holds others' too; empty: it is one gradient.
void Reducer::note_sum(const at::Tensor& reduced, std::vector<size_t> members) {
  at::Tensor real = reduced.is_complex() ? at::view_as_real(reduced) : reduced;
  sums_.push_back({real.sum(real.scalar_type() == at::kDouble ? at::kDouble : at::kFloat), std::move(members)});
}

// All ranks have the same bits, so that all come to the same end without asking.
void Reducer::look_at_sums() {
  auto is_finite = [](const at::Tensor& sum) { return std::isfinite(sum.item<double>()); };
  std::vector<at::Tensor> values;
  for (const Sum& sum : sums_) values.push_back(sum.value.to(at::kDouble));
  if (values.empty() || is_finite(at::stack(values).sum())) return;
  for (const Sum& sum : sums_) {
    if (is_finite(sum.value)) continue;
    // The sum of what is finite may overflow, and a part of the bucket that did not travel may hold anything.
    if (sum.members.empty()) finite_ = false;
    for (size_t member : sum.members) finite_ = finite_ && all_finite(flat_of(member));
  }
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

void Reducer::throw_error() const {
  if (error_) std::rethrow_exception(error_);
}

// Some gradients are means, some are not: better none than half of them.
void Reducer::drop(std::exception_ptr error) {
  drain();  // what has left writes where the next backward would
  drop_gradients();
  touched_.assign(parameters_.size(), false);
  active_ = false;
  std::rethrow_exception(std::move(error));
}

}  // namespace ddip::data_parallel
