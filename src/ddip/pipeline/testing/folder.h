// Where ranks save what a test looks at.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace ddip::pipeline {

// For one test; made and removed by the test's own process, used by its ranks.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("ddip-saved-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file(int number, const std::string& name) const {
    return path_ / fmt::format("step-{:010}.{}", number, name);
  }

 private:
  const std::filesystem::path path_;
};

}  // namespace ddip::pipeline
