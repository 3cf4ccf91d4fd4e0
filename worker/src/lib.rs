//! Workers: programs that are given activities and execute them.
