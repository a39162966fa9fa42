// Policies by name.
#pragma once

#include "ddip/staleness/policies.h"

namespace ddip::staleness {

struct Options {
  bool second_decays = false;  // adam, adamw, nadam: the second moment decays over the n steps as it really would
  PipemareOptions pipemare;
  GapOptions gap;
};

// none, stash, msnag, …
const std::vector<std::string>& policy_names();

// "msnag+stash" → its parts. Throws ConfigError for a name that there is not (with the nearest) and for parts that
// contradict each other.
std::vector<std::string> parts_of(const std::string& policy);

std::unique_ptr<Policy> make_policy(const std::string& name, const Options& options = {});

// What an optimizer gets that nobody has chosen a policy for.
std::string auto_policy(Rule rule);

// The preset "nesterov" is NAdam with a large β₁, and a stash. Its β₁, by stage: β + (versions − 1)(0.99 − β)/stages,
// where versions is how many of its weights a stage has alive; 0.99 where these are more than stages.
double nesterov_beta1(double beta, int versions, int stages);

}  // namespace ddip::staleness
