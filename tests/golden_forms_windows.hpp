#pragma once
// Golden calls of convolutions, pools and resizing in the form that the rows' signatures take. Include behind golden.hpp.

namespace golden {

/// The case with words and holes in its arguments turned into attributes of their own; any other case unchanged.
nlohmann::ordered_json windows_form(nlohmann::ordered_json golden);

}  // namespace golden
