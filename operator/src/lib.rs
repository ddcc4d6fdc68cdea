//! The PostgreSQL operator: see `ARCHITECTURE.md` for the map.
