"""What a kernel's name says (function, functor, family, types, tile, …), each fact with its grade."""
