// What an executor does for each action but the step.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/pipeline/executor.h"
#include "ddip/pipeline/fingerprint.h"
#include "ddip/pipeline/kept_buffers.h"
#include "ddip/pipeline/random.h"

namespace ddip::pipeline {

using schedule::Action;
using schedule::Direction;

namespace {

bool on_host(const Value& value) {
  return std::ranges::all_of(tensors_of(value), [](const at::Tensor& tensor) { return tensor.is_cpu(); });
}

// A number that is too large for half precision is infinite there; torch would refuse it.
void fill(at::Tensor& tensor, double number) {
  if (tensor.scalar_type() == at::kHalf) number = static_cast<float>(at::Half(static_cast<float>(number)));
  tensor.fill_(number);
}

Value copied(const Value& value) {
  return with_tensors(value, [](const at::Tensor& tensor) { return tensor.detach().clone(); });
}

}  // namespace

void Executor::receive(const Action& action) {
  Message message = receivers_.at(link_of(action)).receive(poll_);
  if (message.micro_batch != action.micro_batch)
    throw ProtocolError(fmt::format("micro-batch {} was expected, {} came", action.micro_batch, message.micro_batch));
  message.value = to_device(message.value, stage(action.stage).device);
  Flight& now = flight(action);
  (action.direction == Direction::gradient ? now.gradients : now.arrived)[action.edge] = std::move(message);
}

void Executor::send(const Action& action) {
  Flight& now = flight(action);
  bool gradient = action.direction == Direction::gradient;
  auto& values = gradient ? now.input_gradients : now.outputs;
  auto value = values.find(action.edge);
  if (now.samples > 0 && value == values.end()) throw ConfigError("the plan sends what has not been computed");
  Message message{.micro_batch = action.micro_batch,
                  .count = gradient ? now.loss_count : static_cast<double>(now.samples),
                  .fingerprint = now.fingerprint,
                  .loss_scale = now.loss_scale};
  if (value != values.end()) {
    message.value = std::move(value->second);
    values.erase(value);
  }
  senders_.at(link_of(action)).send(message, poll_);
  if (gradient) end_if_over(action);
  if (!gradient && !options_.training && now.outputs.empty()) flights_.erase({action.stage, action.micro_batch});
}

void Executor::take_inputs(const Action& action, Flight& now) {
  Stage& here = stage(action.stage);
  if (here.incoming.empty()) {
    Sample sample = here.input(action.micro_batch);
    now.samples = sample.count;
    // Of samples on a GPU once a batch: each waits for what the GPU still computes.
    if (sample.count > 0 && reads_twice() && (sample.begins_batch || on_host(sample.value)))
      now.fingerprint = fingerprint(sample.value);
    now.inputs = {to_device(sample.value, here.device)};
    return;
  }
  now.inputs.clear();
  for (int edge : here.incoming) {
    auto message = now.arrived.find(edge);
    if (message == now.arrived.end())
      throw ConfigError(fmt::format("the plan has the forward before its input from stage {}",
                                    arrangement_.edges.at(static_cast<size_t>(edge)).from));
    now.samples = static_cast<int64_t>(message->second.count);
    now.fingerprint = message->second.fingerprint;
    now.inputs.push_back(std::move(message->second.value));
  }
  now.arrived.clear();
}

void Executor::compute(const Action& action, Flight& now, bool with_graph, bool again) {
  Stage& here = stage(action.stage);
  at::AutoGradMode grad_mode(with_graph);
  OwnRandomNumbers numbers(seed_of(options_.seed, here.index, options_.first_micro_batch + action.micro_batch),
                           here.device);
  std::vector<Value> inputs;
  now.entries.assign(now.inputs.size(), Entry());
  for (size_t i = 0; i < now.inputs.size(); ++i) {
    // The samples themselves have no gradients. What will be computed again must not be changed in place.
    Value given = here.recompute && !again && options_.training ? copied(now.inputs[i]) : now.inputs[i];
    inputs.push_back(here.incoming.empty() ? given : now.entries[i].enter(given));
  }
  std::vector<Value> outputs = here.forward(inputs);
  if (outputs.size() != here.outgoing.size() && !here.loss)
    throw ConfigError(
        fmt::format("{} gave {} values for {} later stages", here.name, outputs.size(), here.outgoing.size()));
  now.roots = Roots();
  auto add_root = [&](const at::Tensor& loss, double weight) {
    if (!loss.requires_grad()) return;
    now.roots.edges.push_back(torch::autograd::impl::gradient_edge(loss));
    now.roots.gradients.push_back(at::full_like(loss, weight));
  };
  if (here.auxiliary_losses) {
    // What they weigh, and by how much they are scaled, is known in the backward.
    for (const at::Tensor& loss : here.auxiliary_losses()) add_root(loss, 0);
  }
  now.auxiliary = now.roots.edges.size();
  if (here.loss) {
    Loss loss = here.loss(outputs, action.micro_batch, now.samples);
    now.loss_count = loss.count;
    add_root(loss.sum, 1);
    if (!again) record_.losses.add(action.micro_batch, loss.sum.detach(), loss.count);
    return;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    int edge = here.outgoing[i];
    if (with_graph) now.exits[edge] = Exit(outputs[i]);
    if (!again) now.outputs[edge] = with_tensors(outputs[i], [](const at::Tensor& tensor) { return tensor.detach(); });
  }
}

void Executor::forward(const Action& action, Done& done) {
  Stage& here = stage(action.stage);
  Flight& now = flight(action);
  for (const Waiting& waiting : waiting_) {
    if (waiting.stage == &here)
      throw ConfigError(
          "the plan goes on before all stages of this rank have stepped, which tell each other of their gradients; "
          "expected clipping='local', and no precision='fp16'");
  }
  take_inputs(action, now);
  done.count = static_cast<double>(now.samples);
  if (now.samples == 0) {
    if (here.loss) now.loss_count = 0;
    if (here.versions && options_.training) here.versions->skip(action.version);
  } else {
    if (here.loss && here.input && !here.incoming.empty() && reads_twice()) {
      Sample own = here.input(action.micro_batch);
      if (own.count != now.samples || (now.fingerprint != 0 && fingerprint(own.value) != now.fingerprint))
        throw ConfigError(fmt::format(
            "micro-batch {} of the last stage's batches is not the one that the first stage read: every rank "
            "must read equally seeded batches of equal number",
            action.micro_batch));
    }
    if (here.versions) {
      now.used = options_.training ? here.versions->before_forward(action.micro_batch, action.version, action.staleness)
                                   : Used{};
      if (!options_.training) here.versions->settle();
      if (here.gaps && options_.training) here.gaps->forward(action.micro_batch, now.used, here.versions->weights());
      done.used = now.used;
    }
    compute(action, now, options_.training && !here.recompute, false);
    if (!here.recompute) now.inputs.clear();
  }
  for (int edge : here.outgoing) {
    if (!is_local(edge)) continue;
    // A copy: the next stage may change it in place, and this one's graph may still need it.
    Message message{
        .micro_batch = action.micro_batch, .count = static_cast<double>(now.samples), .fingerprint = now.fingerprint};
    if (now.samples > 0) message.value = copied(now.outputs.at(edge));
    now.outputs.erase(edge);
    flights_[{arrangement_.edges[static_cast<size_t>(edge)].to, action.micro_batch}].arrived[edge] = std::move(message);
  }
  if (!options_.training && now.outputs.empty()) {
    bool sends = false;
    for (int edge : here.outgoing) sends |= !is_local(edge);
    if (!sends) flights_.erase({action.stage, action.micro_batch});
  }
}

void Executor::backward(const Action& action, Done& done) {
  Stage& here = stage(action.stage);
  Flight& now = flight(action);
  for (auto& [edge, message] : now.gradients) {
    now.loss_count = message.count;
    now.loss_scale = message.loss_scale;
  }
  if (here.loss && loss_scale_) now.loss_scale = loss_scale_->now();
  done.loss_scale = now.loss_scale;
  done.count = now.loss_count;
  if (now.samples > 0) {
    if (here.versions) {
      record_.unreached.insert(here.index);  // until the end of the run, if none of its backwards comes there
      if (here.gaps) here.gaps->backward(action.micro_batch, here.versions->weights());
      done.read = here.versions->before_backward(action.micro_batch, now.used);
    }
    // Put back after the backward: its graph may have saved them, and counts their changes.
    std::optional<KeptBuffers> buffers;
    if (here.recompute) {
      buffers.emplace(here.buffers ? here.buffers() : std::vector<at::Tensor>{});
      compute(action, now, true, true);
    }
    // As much as the micro-batch's loss: a mean beside it stays one when both are divided by what the step counts.
    for (size_t i = 0; i < now.roots.gradients.size(); ++i) {
      const bool auxiliary = i < now.auxiliary;
      if (auxiliary || now.loss_scale != 1)
        fill(now.roots.gradients[i], (auxiliary ? now.loss_count : 1) * now.loss_scale);
    }
    // The deepest stage's gradients first: a replay adds them in the same order.
    for (auto it = now.gradients.rbegin(); it != now.gradients.rend(); ++it) {
      if (!std::holds_alternative<std::monostate>(it->second.value.content))
        now.exits.at(it->first).add_to(now.roots, it->second.value);
    }
    now.exits.clear();
    now.inputs.clear();
    run_graph(action, now);
    if (buffers) buffers->put_back();
    done.split = now.later != nullptr;
    if (here.versions && !now.later)
      here.versions->after_backward(action.micro_batch, now.used, now.loss_count, now.loss_scale);
  } else if (here.versions) {
    here.versions->scale(now.loss_scale);  // of the step, that other replicas have samples for
  }
  now.gradients.clear();
  for (size_t i = 0; i < here.incoming.size(); ++i) {
    int edge = here.incoming[i];
    Value gradients = now.samples > 0 ? now.entries[i].gradients() : Value{};
    if (is_local(edge)) {
      flights_[{arrangement_.edges[static_cast<size_t>(edge)].from, action.micro_batch}].gradients[edge] = {
          .micro_batch = action.micro_batch,
          .count = now.loss_count,
          .loss_scale = now.loss_scale,
          .value = std::move(gradients)};
    } else {
      now.input_gradients[edge] = std::move(gradients);
    }
  }
  now.entries.clear();
  end_if_over(action);
}

void Executor::run_graph(const Action& action, Flight& now) {
  Roots roots = std::move(now.roots);
  now.roots = Roots();
  if (roots.edges.empty()) return;
  Stage& here = stage(action.stage);
  reached_.insert(here.index);
  // In two parts only where nothing is loaded or put back between them.
  if (split_stages_.contains(here.index) && here.versions && here.versions->may_sum_later() && !here.recompute) {
    torch::autograd::edge_list inputs;
    for (const Entry& entry : now.entries) inputs.insert(inputs.end(), entry.ends().begin(), entry.ends().end());
    std::string why;
    now.later = SplitBackward::of(roots, inputs, why);
    if (!why.empty()) record_.whole_backwards.try_emplace(here.index, why);
  }
  if (now.later) return now.later->input_gradients();
  torch::autograd::Engine::get_default_engine().execute(roots.edges, roots.gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true, {});
}

// Nothing is left to do where the backward did it all.
void Executor::weight_gradients(const Action& action, Done& done) {
  auto found = flights_.find({action.stage, action.micro_batch});
  if (found == flights_.end() || !found->second.later) return;
  Flight& now = found->second;
  done.count = now.loss_count;
  done.split = true;
  std::exchange(now.later, nullptr)->weight_gradients();
  stage(action.stage).versions->after_backward(action.micro_batch, now.used, now.loss_count, now.loss_scale);
  end_if_over(action);
}

// After the backward: what is left of a micro-batch are gradients to send, and those of weights to compute.
void Executor::end_if_over(const Action& action) {
  Flight& now = flight(action);
  if (now.input_gradients.empty() && !now.later) flights_.erase({action.stage, action.micro_batch});
}

}  // namespace ddip::pipeline
