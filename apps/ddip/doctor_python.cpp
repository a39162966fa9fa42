#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "doctor_checks.h"
#include "python.h"
#include "scripts.h"

namespace ddip::app {

using nlohmann::json;
using namespace std::chrono_literals;

namespace {

constexpr int kForkThreads = 4;  // what `import torch` alone may leave: python/ddip/worker/warm.py
constexpr auto kPatience = 60s;

std::string text_in(const json& object, const char* key) {
  return object.contains(key) && object.at(key).is_string() ? object.at(key).get<std::string>() : "";
}

Check check_package(const json& ddip, const std::string& python) {
  const std::string error = text_in(ddip, "error");
  if (error.empty()) return {"ddip package", Verdict::ok, text_in(ddip, "folder")};
  return {"ddip package", Verdict::fail, "cannot be imported: " + one_line(error),
          fmt::format("{} -m pip install ddip, or --python with the one that has it", python)};
}

void check_torch(const json& torch, std::vector<Check>& checks) {
  const std::string error = text_in(torch, "error");
  if (!error.empty()) {
    checks.push_back({"torch", Verdict::warn, "cannot be imported: " + one_line(error),
                      "pip install torch; without it workers run plain Python"});
    return;
  }
  const std::string cuda = text_in(torch, "cuda");
  const std::string build =
      fmt::format("{}, {}, C++11 ABI {}", text_in(torch, "version"), cuda.empty() ? "CPU only" : "CUDA " + cuda,
                  torch.value("cxx11_abi", true) ? "new" : "old");
  if (torch.value("gloo", false))
    checks.push_back({"torch", Verdict::ok, build + ", Gloo"});
  else
    checks.push_back({"torch", Verdict::fail, build + ", without torch.distributed's Gloo",
                      "install a torch that was built with USE_DISTRIBUTED=1 and Gloo"});

  const int threads = torch.value("threads", 1);
  if (torch.value("cuda_touched", false))
    checks.push_back({"fork safety", Verdict::warn, "`import torch` initialises CUDA",
                      "workers are started by exec then; look for a sitecustomize that imports CUDA code"});
  else if (threads > kForkThreads)
    checks.push_back({"fork safety", Verdict::warn, fmt::format("{} threads after `import torch`", threads),
                      "workers are started by exec then, which is slower (--start exec)"});
  else
    checks.push_back(
        {"fork safety", Verdict::ok,
         fmt::format("{} after `import torch`, CUDA untouched", counted(static_cast<size_t>(threads), "thread"))});
}

}  // namespace

std::vector<Check> check_python(const Context& context, const std::string& python) {
  const Answer answer = ask_python(context, python, scripts::doctor, kPatience);
  const size_t begin =
      answer.out.rfind("\n{") == std::string::npos ? 0 : answer.out.rfind("\n{") + 1;  // a site module may print
  const json about = json::parse(answer.out.substr(begin), nullptr, false);
  if (!answer.ended || !about.is_object()) {
    const std::string why = answer.ended ? one_line(answer.err) : fmt::format("no answer in {} s", kPatience.count());
    return {{"Python", Verdict::fail, fmt::format("{}: {}", python, shortened(why, 200)),
             "--python PATH names another one"}};
  }
  std::vector<Check> checks = {{"Python", Verdict::ok,
                                fmt::format("{} {}, {} ({})", text_in(about, "implementation"),
                                            text_in(about, "version"), text_in(about, "abi"), python)}};
  checks.push_back(check_package(about.at("ddip"), python));
  check_torch(about.at("torch"), checks);

  const json& packages = about.at("packages");
  if (text_in(packages, "cloudpickle").empty())
    checks.push_back({"cloudpickle", Verdict::fail, "not installed", "pip install cloudpickle"});
  if (const std::string version = text_in(packages, "ipython"); !version.empty())
    checks.push_back({"IPython", Verdict::ok, version});
  else
    checks.push_back(
        {"IPython", Verdict::warn, "not installed: cells are plain Python, without magics", "pip install ipython"});
  const std::string lab = text_in(packages, "jupyterlab"), kernel = text_in(packages, "ipykernel");
  if (!kernel.empty())
    checks.push_back(
        {"Jupyter", Verdict::ok, fmt::format("ipykernel {}{}", kernel, lab.empty() ? "" : ", JupyterLab " + lab)});
  else
    checks.push_back({"Jupyter", Verdict::warn, "no ipykernel: %makedip needs a notebook", "pip install jupyterlab"});
  return checks;
}

}  // namespace ddip::app
