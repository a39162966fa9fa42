// What a policy may know of a stage's optimizer: its rule, its rates, its state. All of a stage's parameters lie in one
// flat tensor, and so does each part of the state; a parameter group is a slice of them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddip/tensors/torch.h"

namespace ddip::staleness {

// sutskever: v ← γv + ηg, w ← w − v (the rate inside the velocity). The others as torch.optim writes them; any of its
// other classes is `other`.
enum class Rule { sgd, sutskever, adam, adamw, nadam, other };

// By torch.optim's class name in any case, or "sutskever". What it does not know is Rule::other.
Rule rule_of(const std::string& name);
std::string name_of(Rule rule);
// Whether it keeps a first and a second moment.
inline bool is_adaptive(Rule rule) { return rule == Rule::adam || rule == Rule::adamw || rule == Rule::nadam; }

// One parameter group, in torch.optim's own words; what its rule has not stays as it is here.
struct Group {
  int64_t begin = 0, end = 0;  // the slice
  double rate = 0;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false, amsgrad = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum_decay = 4e-3;         // NAdam's ψ
  bool decoupled_weight_decay = false;  // NAdam's flag; AdamW always decouples, Adam never
};

struct Optimizer {
  Rule rule = Rule::sgd;
  std::vector<Group> groups;
  int64_t steps = 0;                // done by now
  std::vector<double> mu_products;  // of each group NAdam's Π μ_i of these; empty: 1
  at::Tensor weights;               // the newest true ones
  at::Tensor velocity;              // momentum_buffer or exp_avg; undefined before the first step and without momentum
  at::Tensor second;                // exp_avg_sq; undefined before the first step and for SGD
  // Slices [begin, end) of parameters that have not stepped yet, where others have: their moments are zeros that mean
  // nothing, and dividing by such a second moment would throw them far away.
  std::vector<std::pair<int64_t, int64_t>> unstepped;
};

// This group's part of a flat tensor; an undefined tensor stays one.
at::Tensor slice_of(const at::Tensor& flat, const Group& group);

}  // namespace ddip::staleness
