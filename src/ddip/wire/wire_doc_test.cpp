// WIRE.md is the manual of the protocol; these keep it from falling behind.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "ddip/net/frame.h"
#include "ddip/wire/codec.h"

namespace ddip::wire {
namespace {

namespace fs = std::filesystem;

// Beside this source. ccache makes __FILE__ relative to the build folder, which lies somewhere above the program.
fs::path manual_path() {
  const fs::path source = fs::path(__FILE__).parent_path() / "WIRE.md";
  for (fs::path folder = fs::read_symlink("/proc/self/exe").parent_path(); folder != folder.root_path();
       folder = folder.parent_path()) {
    if (fs::exists(folder / source)) return folder / source;
  }
  return source;
}

std::string read_manual() {
  std::ifstream file(manual_path());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST(WireDoc, every_type_is_there_with_its_number) {
  std::string manual = read_manual();
  ASSERT_FALSE(manual.empty()) << "WIRE.md is expected beside " << __FILE__;
  for (int number = 0; number <= UINT16_MAX; ++number) {
    std::string name = name_of(static_cast<Type>(number));
    if (name == fmt::format("type {}", number)) continue;
    EXPECT_NE(manual.find(fmt::format("| `{}` | {} |", name, number)), std::string::npos) << name << " " << number;
  }
}

TEST(WireDoc, no_type_is_there_that_does_not_exist) {
  std::istringstream manual(read_manual());
  int rows = 0;
  for (std::string line; std::getline(manual, line);) {
    size_t end = line.find("` | ");
    if (line.rfind("| `", 0) != 0 || end == std::string::npos) continue;
    int number = std::atoi(line.c_str() + end + 4);
    EXPECT_EQ(name_of(static_cast<Type>(number)), line.substr(3, end - 3));
    ++rows;
  }
  EXPECT_GE(rows, 34);
}

TEST(WireDoc, numbers_of_the_limits_are_those_of_the_code) {
  std::string manual = read_manual();
  EXPECT_NE(manual.find(fmt::format("Cap: {} KiB until the hello was accepted, {} MiB after",
                                    net::kBodyCapBeforeHello >> 10, net::kBodyCap >> 20)),
            std::string::npos);
  EXPECT_NE(manual.find(fmt::format("with this frame, 0–{}", net::kMaxDescriptors)), std::string::npos);
  EXPECT_NE(manual.find(fmt::format("nested at most {} deep", kMaxDepth)), std::string::npos);
}

}  // namespace ddip::wire
