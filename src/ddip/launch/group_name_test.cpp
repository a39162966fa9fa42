#include "ddip/launch/group_name.h"

#include <gtest/gtest.h>

#include <limits>

#include "ddip/launch/flag_values.h"

namespace ddip::launch {
namespace {

TEST(GroupName, hash_is_fnv1a_as_published) {
  EXPECT_EQ(fnv1a_64(""), 0xcbf29ce484222325U);
  EXPECT_EQ(fnv1a_64("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(fnv1a_64("foobar"), 0x85944171f73967e8U);
}

TEST(GroupName, notebook_is_its_file_name_and_six_digits_of_its_paths_hash) {
  EXPECT_EQ(notebook_group_name("foobar"), "foobar-859441");
  EXPECT_TRUE(notebook_group_name("/home/a/My model (2).ipynb").starts_with("My-model-2-"));
}

TEST(GroupName, same_path_same_name_other_folder_other_name) {
  EXPECT_EQ(notebook_group_name("/a/x.ipynb"), notebook_group_name("/a/x.ipynb"));
  EXPECT_NE(notebook_group_name("/a/x.ipynb"), notebook_group_name("/b/x.ipynb"));
}

TEST(GroupName, script_is_its_file_name_and_process) {
  EXPECT_EQ(script_group_name("tools/train.py", 4711), "train-4711");
  EXPECT_EQ(script_group_name("-c", 4711), "python-4711");
  EXPECT_EQ(script_group_name("", 4711), "python-4711");
}

TEST(GroupName, is_always_a_valid_name) {
  const std::string hidden = "/home/a/.ipynb", unicode = "/\xe6\xa8\xa1\xe5\x9e\x8b.ipynb";
  const std::string long_name(500, 'x'), cut_at_dash = std::string(24, 'x') + "-yyy";
  for (const std::string& path : {std::string(), std::string("/"), std::string("a/"), std::string("---"), hidden,
                                  unicode, long_name, cut_at_dash, std::string("a\nb")}) {
    EXPECT_TRUE(is_group_name(notebook_group_name(path))) << notebook_group_name(path);
    const std::string script = script_group_name(path, std::numeric_limits<std::int64_t>::max());
    EXPECT_TRUE(is_group_name(script)) << script;
  }
}

}  // namespace
}  // namespace ddip::launch
