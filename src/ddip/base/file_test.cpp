#include "ddip/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "ddip/base/error.h"

namespace ddip {
namespace {

namespace fs = std::filesystem;

class File : public ::testing::Test {
 protected:
  File() : folder(fs::temp_directory_path() / ("ddip_file_" + std::to_string(::getpid()))) {
    fs::create_directories(folder);
  }
  ~File() override { fs::remove_all(folder); }

  static std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const fs::path folder;
};

TEST_F(File, a_new_file_has_its_name_only_when_all_is_written) {
  const fs::path path = folder / "x";
  std::ofstream(path) << "old";
  {
    NewFile file(path);
    file.write(bytes("half"), 0);
    EXPECT_EQ(contents(path), "old");
  }
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "the unfinished one is gone";
  NewFile file(path);
  file.write(bytes("w"), 2);
  file.write(bytes("ne"), 0);
  file.publish();
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(File, what_is_no_regular_file_is_refused_at_once) {
  const fs::path fifo = folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const fs::path& path : {fifo, fs::path("/dev/zero"), folder}) {
    try {
      open_regular(path);
      FAIL() << path;
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()), path.string() + ": it is no regular file");
    }
  }
  for (const fs::path& path : {fifo, folder}) EXPECT_THROW(NewFile{path}, ConfigError) << "it would be replaced";
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_THROW(open_regular(folder / "missing"), ConfigError);
  EXPECT_THROW(NewFile(folder / "missing" / "x"), ConfigError);
}

TEST_F(File, a_disk_that_is_full_is_no_false_success) {
  const fs::path path = folder / "full";
  struct ::stat about{};
  ASSERT_EQ(::stat("/dev/full", &about), 0);
  fs::create_symlink("/dev/full", path.string() + "." + std::to_string(::getpid()) + ".part");
  NewFile file(path);
  EXPECT_THROW(file.write(bytes("text"), 0), std::runtime_error);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(File, reading_ends_where_the_file_does) {
  const fs::path path = folder / "x";
  std::ofstream(path) << "0123456789";
  const OpenFile opened = open_regular(path);
  EXPECT_EQ(opened.bytes, 10u);
  std::string out(8, '.');
  EXPECT_EQ(read_at(opened.file, path, out.data(), out.size(), 6), 4u);
  EXPECT_EQ(out, "6789....");
  EXPECT_EQ(read_small_file(path, 10), "0123456789");
  EXPECT_THROW(read_small_file(path, 9), ConfigError);
}

}  // namespace
}  // namespace ddip
