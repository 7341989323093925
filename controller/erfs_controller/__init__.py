"""The controller: whom to believe, which routes, in which order to push them."""
