#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "ddip/base/error.h"
#include "ddip/data/npy_file.h"

namespace ddip::data {
namespace {

using testing::HasSubstr;

class Npy : public testing::Test {
 protected:
  Npy() : folder(testing::TempDir() + "npy_test_" + std::to_string(::getpid())) {
    std::filesystem::create_directory(folder);
  }
  ~Npy() override { std::filesystem::remove_all(folder); }

  std::filesystem::path file(const std::string& bytes) {
    auto path = folder / "x.npy";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string refusal(const std::string& bytes) {
    auto path = file(bytes);
    try {
      NpyFile opened(path);
    } catch (const ConfigError& error) {
      std::string text = error.what();
      EXPECT_TRUE(text.starts_with(path.string() + ": ")) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      return text.substr(path.string().size() + 2);
    }
    return "";
  }

  std::filesystem::path folder;
};

// A header with this dictionary, version 1.0.
std::string with(const std::string& dictionary, const std::string& data = "") {
  std::string header = "\x93NUMPY";
  header += std::string("\x01\x00", 2);
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary + data;
}

std::string good(const std::string& descr, const std::string& shape, const std::string& data) {
  return with("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }\n", data);
}

}  // namespace

TEST_F(Npy, what_is_written_is_read) {
  auto path = folder / "rows.npy";
  NpyWriter writer(path, {'f', 4}, {2, 3});
  std::vector<float> rows(5 * 6);
  for (size_t index = 0; index < rows.size(); ++index) rows[index] = static_cast<float>(index);
  writer.write(std::as_bytes(std::span(rows).first(12)));
  writer.write(std::as_bytes(std::span(rows).subspan(12)));
  EXPECT_FALSE(std::filesystem::exists(path)) << "it appears when it is whole";
  writer.close();
  NpyFile read(path);
  EXPECT_EQ(read.header().shape, (std::vector<uint64_t>{5, 2, 3}));
  EXPECT_EQ(read.header().type, (NpyType{'f', 4}));
  std::vector<float> some(12);
  read.read(2, 2, some.data());
  EXPECT_EQ(some, std::vector<float>(rows.begin() + 12, rows.begin() + 24));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "nothing unfinished is left";
}

TEST_F(Npy, a_writer_that_is_given_up_leaves_what_was_there) {
  auto path = file(good("<f4", "1,", "abcd"));
  {
    NpyWriter writer(path, {'f', 4}, {});
    float one = 1;
    writer.write(std::as_bytes(std::span(&one, 1)));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  EXPECT_EQ(NpyFile(path).rows(), 1u);
}

TEST_F(Npy, bad_files_are_refused_with_one_line) {
  EXPECT_EQ(refusal(good("<f4", "2,", "12345678")), "");
  EXPECT_THAT(refusal(""), HasSubstr("ends inside its header"));
  EXPECT_THAT(refusal("PK\x03\x04 a zip file"), HasSubstr("does not begin as a .npy file does"));
  EXPECT_THAT(refusal(std::string("\x93NUMPY\x09\x00 a version", 18)), HasSubstr("version is 9.0"));
  EXPECT_THAT(refusal(std::string("\x93NUMPY\x02\x00\xff\xff\xff\x7f", 12)),
              HasSubstr("header is 2147483647 bytes long"));
  EXPECT_THAT(refusal(with("{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os'), }")),
              HasSubstr("'(' was expected"));
  EXPECT_THAT(refusal(with("[1, 2]")), HasSubstr("'{' was expected"));
  EXPECT_THAT(refusal(with("{'descr': '<f4', 'shape': (2,), }")), HasSubstr("lacks descr, fortran_order or shape"));
  EXPECT_THAT(refusal(with("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}")),
              HasSubstr("key 'more'"));
  EXPECT_THAT(refusal(with("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } behind")),
              HasSubstr("goes on behind"));
  EXPECT_THAT(refusal(good("|O", "2,", "")), HasSubstr("Python objects, which need pickle"));
  EXPECT_THAT(refusal(good(">f4", "2,", "12345678")), HasSubstr("big-endian (>f4); save them as '<f4'"));
  EXPECT_THAT(refusal(good("<c8", "2,", "")), HasSubstr("of type '<c8'"));
  EXPECT_THAT(refusal(good("<f4", "-2,", "")), HasSubstr("negative"));
  EXPECT_THAT(refusal(good("<f4", "99999999999999999999999,", "")), HasSubstr("too large"));
  EXPECT_THAT(refusal(good("<f4", "4294967296, 4294967296, 4294967296", "")), HasSubstr("too large"));
  EXPECT_THAT(refusal(good("<f4", "0, 4294967296, 4294967296, 4294967296", "")), HasSubstr("too large"));
  EXPECT_THAT(refusal(with("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }", "12345678")),
              HasSubstr("Fortran order"));
  EXPECT_THAT(refusal(good("<f4", "3,", "12345678")), HasSubstr("cut off"));
  EXPECT_THAT(refusal(good("<f4", "1,", "12345678")), HasSubstr("followed by something else"));
  EXPECT_THAT(refusal(good("<f4", "0, 4", "")), HasSubstr("no rows"));
  EXPECT_THAT(refusal(good("<f4", "", "1234")), HasSubstr("one number, not rows"));
  EXPECT_THROW(NpyFile(folder / "nothing.npy"), ConfigError);
  EXPECT_THROW(NpyFile{folder}, ConfigError);
}

TEST_F(Npy, a_file_that_is_cut_off_while_it_is_read_is_an_error_and_not_the_end) {
  auto path = file(good("<f4", "4,", std::string(16, 'x')));
  NpyFile open(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 8);
  std::vector<float> rows(4);
  open.read(0, 2, rows.data());
  try {
    open.read(0, 4, rows.data());
    FAIL() << "it was read";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rows 2 to 3 are gone"));
  }
}

}  // namespace ddip::data
