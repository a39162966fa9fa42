#include "ddip/launch/apps.h"

#include <algorithm>

namespace ddip::launch {

const std::vector<App>& apps() {
  static const std::vector<App> table = {{"fastai", "fastai", "torch,fastai.basics,fastai.callback.all"}};
  return table;
}

const App* find_app(const std::string& name) {
  const auto found = std::ranges::find(apps(), name, &App::name);
  return found == apps().end() ? nullptr : &*found;
}

std::vector<std::string> app_names() {
  std::vector<std::string> names = {"none"};
  for (const App& app : apps()) names.push_back(app.name);
  return names;
}

}  // namespace ddip::launch
