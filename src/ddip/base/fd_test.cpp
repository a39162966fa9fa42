#include "ddip/base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <system_error>

namespace ddip {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
Fd null() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

TEST(Fd, closes_itself_once_however_it_was_moved) {
  int number = -1;
  {
    Fd first = null();
    number = first.get();
    Fd second = std::move(first);
    EXPECT_FALSE(first);
    Fd third;
    third = std::move(second);
    EXPECT_EQ(third.get(), number);
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(Fd, is_moved_above_the_standard_streams) {
  const Fd saved(::fcntl(0, F_DUPFD_CLOEXEC, 3));
  ::close(0);
  Fd low = null();
  const int number = low.get();
  const Fd high = above_standard(std::move(low));
  const bool was_closed = !is_open(0);
  if (saved) ::dup2(saved.get(), 0);
  EXPECT_EQ(number, 0);
  EXPECT_GT(high.get(), 2);
  EXPECT_TRUE(was_closed);
  EXPECT_FALSE(above_standard(Fd()));
}

TEST(Fd, assignment_closes_what_was_there_and_release_gives_it_away) {
  Fd one = null(), two = null();
  int old = one.get();
  one = std::move(two);
  EXPECT_FALSE(is_open(old));
  int released = one.release();
  EXPECT_FALSE(one);
  EXPECT_TRUE(is_open(released));
  ::close(released);
}

TEST(Fd, duplicate_is_another_number_closed_on_exec_and_fails_loudly) {
  Fd one = null();
  Fd two = one.duplicate();
  EXPECT_NE(one.get(), two.get());
  EXPECT_TRUE(::fcntl(two.get(), F_GETFD) & FD_CLOEXEC);
  EXPECT_THROW(Fd().duplicate(), std::system_error);
}

}  // namespace ddip
