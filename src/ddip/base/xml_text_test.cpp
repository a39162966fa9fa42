#include "ddip/base/xml_text.h"

#include <gtest/gtest.h>

namespace ddip {
namespace {

TEST(XmlText, LeavesNothingThatXmlWouldReadOrRefuse) {
  EXPECT_EQ(xml_text("a <b> & \"c\"\x01\n→"), "a &lt;b&gt; &amp; &quot;c&quot;→");
}

}  // namespace
}  // namespace ddip
