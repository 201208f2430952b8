//! kymo-profile.
