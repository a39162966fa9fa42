#include "ddip/pipeline/part.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <set>

#include "ddip/base/error.h"

namespace ddip::pipeline {

std::string Part::kind_of(const torch::nn::Module& module) {
  std::string name = module.name();
  if (size_t scope = name.rfind("::"); scope != std::string::npos) name.erase(0, scope + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::vector<Part> cut_at(torch::nn::Sequential model, const std::vector<int>& ends) {
  std::vector<std::string> names = model->named_children().keys();
  auto layer = model->begin();
  std::vector<Part> parts;
  int done = 0;
  for (int end : ends) {
    torch::nn::Sequential part;
    std::vector<std::string> inside;
    for (; done < end; ++done, ++layer) {
      inside.push_back(names[static_cast<size_t>(done)]);
      part->push_back(inside.back(), *layer);
    }
    parts.emplace_back(part).prefix = "";
    parts.back().layers = std::move(inside);
  }
  return parts;
}

std::vector<Part> cut(torch::nn::Sequential model, int stages) {
  const auto layers = static_cast<int>(model->size());
  if (stages < 1 || stages > layers)
    throw ConfigError(fmt::format("{} stages of a model with {} layers: expected at most {}", stages, layers, layers));
  std::vector<int> ends;
  // Rounded to even, as Python's round: the same model is cut in the same places.
  for (int stage = 0; stage < stages; ++stage)
    ends.push_back(static_cast<int>(std::nearbyint(static_cast<double>(stage + 1) * layers / stages)));
  return cut_at(model, ends);
}

std::vector<Part> cut(torch::nn::Sequential model, const std::vector<std::vector<std::string>>& stages) {
  const std::vector<std::string> names = model->named_children().keys();
  std::vector<std::string> asked;
  std::vector<int> ends;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].empty()) throw ConfigError(fmt::format("stage {} has no layer: expected some", stage));
    asked.insert(asked.end(), stages[stage].begin(), stages[stage].end());
    ends.push_back(static_cast<int>(asked.size()));
  }
  if (asked != names)
    throw ConfigError(fmt::format("stages of the layers {}: expected the model's, in their order: {}",
                                  fmt::join(asked, ", "), fmt::join(names, ", ")));
  return cut_at(model, ends);
}

std::vector<NamedTensor> parameters_of(const Part& part) {
  std::vector<NamedTensor> found;
  std::set<const at::TensorImpl*> seen;
  if (!part.module) return found;
  for (const auto& item : part.module->named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) found.push_back({item.key(), item.value()});
  }
  return found;
}

std::vector<NamedTensor> trained_in(const Part& part) {
  std::vector<NamedTensor> found = parameters_of(part);
  std::erase_if(found, [](const NamedTensor& one) { return !one.tensor.requires_grad(); });
  return found;
}

int64_t trained_elements(const Part& part) {
  int64_t elements = 0;
  for (const auto& [name, tensor] : trained_in(part)) elements += tensor.numel();
  return elements;
}

void refuse_tied(const std::vector<Part>& parts) {
  std::map<const at::TensorImpl*, std::pair<size_t, std::string>> home;
  const auto refuse_another = [&](size_t stage, const std::string& name, const at::Tensor& tensor, const char* what) {
    auto [place, is_new] = home.try_emplace(tensor.unsafeGetTensorImpl(), stage, name);
    if (!is_new && place->second.first != stage)
      throw ConfigError(fmt::format("{} of stage {} and {} of stage {} are one {}", place->second.second,
                                    place->second.first, name, stage, what));
  };
  for (size_t stage = 0; stage < parts.size(); ++stage) {
    for (const auto& [name, tensor] : parameters_of(parts[stage]))
      refuse_another(stage, name, tensor,
                     "parameter; weights that are tied across stages are not kept equal: expected them in one stage, "
                     "or lent to the other one as a value of a pipeline::Graph");
    if (!parts[stage].module) continue;
    for (const auto& item : parts[stage].module->named_buffers()) {
      if (item.value().defined())
        refuse_another(stage, item.key(), item.value(),
                       "buffer; each stage would write its own copy: expected its layers in one stage");
    }
  }
}

std::vector<Value> run_part(const Part& part, const std::vector<Value>& inputs, size_t outgoing) {
  Value result = part.forward(inputs.size() == 1 ? inputs[0] : Value{Value::Tuple{inputs}});
  if (outgoing < 2) return {std::move(result)};
  if (auto* each = std::get_if<Value::Tuple>(&result.content)) return std::move(each->items);
  return std::vector<Value>(outgoing, result);
}

}  // namespace ddip::pipeline
