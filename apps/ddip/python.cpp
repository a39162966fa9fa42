#include "python.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <sstream>
#include <vector>

#include "ddip/agent/process.h"
#include "ddip/base/error.h"
#include "ddip/launch/apps.h"
#include "ddip/launch/flag_values.h"

namespace ddip::app {
namespace fs = std::filesystem;

namespace {

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

// ROOT/python/ddip/_bin/ddip belongs to ROOT/.venv; PREFIX/lib/python3.x/site-packages/ddip/_bin/ddip to PREFIX.
std::vector<fs::path> beside(const Context& context) {
  std::vector<fs::path> found = {context.folder / "python", context.folder / "python3"};
  const fs::path package = context.program.parent_path().parent_path();
  if (package.filename() == "ddip" && context.program.parent_path().filename() == "_bin") {
    const fs::path above = package.parent_path();
    if (above.filename() == "python") found.push_back(above.parent_path() / ".venv" / "bin" / "python");
    if (above.filename() == "site-packages")
      found.push_back(above.parent_path().parent_path().parent_path() / "bin" / "python");
  }
  return found;
}

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

std::optional<std::string> find_program(const Context& context, const std::string& name) {
  if (name.find('/') != std::string::npos) return is_program(name) ? std::optional(name) : std::nullopt;
  std::istringstream folders(context.variable("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (is_program(fs::path(folder) / name)) return (fs::path(folder) / name).string();
  }
  return std::nullopt;
}

std::string find_python(const Context& context, const std::string& asked, const std::string& where) {
  if (!asked.empty()) {
    auto found = find_program(context, asked);
    if (!found)
      throw ConfigError(fmt::format("{} --python {}: no such program; expected a Python", where, launch::shown(asked)));
    std::error_code error;
    return fs::absolute(*found, error).string();
  }
  for (const fs::path& candidate : beside(context)) {
    if (is_program(candidate)) return candidate.string();
  }
  for (const char* name : {"python3", "python"}) {
    if (auto found = find_program(context, name)) return *found;
  }
  throw ConfigError(where + ": no python3 in PATH; expected --python PATH");
}

std::string python_path(const Context& context) {
  std::string path = context.variable("PYTHONPATH");
  const fs::path package = context.program.parent_path().parent_path();
  const fs::path above = package.parent_path();
  std::error_code error;
  if (package.filename() != "ddip" || above.filename() == "site-packages" ||
      !fs::exists(package / "__init__.py", error))
    return path;
  return path.empty() ? above.string() : above.string() + ":" + path;
}

Answer ask_python(const Context& context, const std::string& python, const std::string& script,
                  std::chrono::seconds patience) {
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  agent::Command command;
  command.argv = {python, "-c", script};
  command.environment = context.environment;
  command.environment["PYTHONPATH"] = python_path(context);
  if (command.environment["PYTHONPATH"].empty()) command.environment.erase("PYTHONPATH");
  command.output = out_write.get();
  command.error = err_write.get();
  const pid_t pid = agent::start(command);
  out_write.reset();
  err_write.reset();

  Answer answer;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (out_read || err_read) {
    std::array<pollfd, 2> events = {{{out_read.get(), POLLIN, 0}, {err_read.get(), POLLIN, 0}}};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    if (::poll(events.data(), events.size(), static_cast<int>(left.count())) < 0 && errno != EINTR) throw_errno("poll");
    for (size_t index = 0; index < events.size(); ++index) {
      if (events.at(index).revents == 0) continue;
      std::array<char, 4096> part{};
      const ssize_t count = ::read(events.at(index).fd, part.data(), part.size());
      if (count > 0)
        (index == 0 ? answer.out : answer.err).append(part.data(), static_cast<size_t>(count));
      else
        (index == 0 ? out_read : err_read).reset();
    }
  }
  answer.ended = !out_read && !err_read;
  if (!answer.ended) ::kill(-pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  answer.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return answer;
}

void become_python_module(const Context& context, const std::string& python, const std::string& module,
                          const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {python, "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::map<std::string, std::string> environment = context.environment;
  if (const std::string path = python_path(context); !path.empty()) environment["PYTHONPATH"] = path;
  std::vector<std::string> settings;
  for (const auto& [name, value] : environment) settings.push_back(name + "=" + value);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> found;
    for (std::string& text : texts) found.push_back(text.data());
    found.push_back(nullptr);
    return found;
  };
  ::execve(python.c_str(), pointers(words).data(), pointers(settings).data());
  throw_errno(python);
}

void require_app(const Context& context, const std::string& python, const std::string& app, const std::string& where) {
  const launch::App* wanted = launch::find_app(app);
  if (wanted == nullptr) return;
  const Answer answer =
      ask_python(context, python,
                 fmt::format("import importlib.util as u, sys; sys.exit(u.find_spec('{}') is None)", wanted->module),
                 std::chrono::seconds(20));
  if (answer.ended && answer.code == 0) return;
  throw ConfigError(fmt::format("{} -a {}: {} has no {}; expected a Python that has it (--python PATH)", where, app,
                                python, wanted->module));
}

}  // namespace ddip::app
