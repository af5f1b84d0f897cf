"""Jobs that ship with Anabranch and run on Spark: what is replayed, moved or summed up, and how it is started."""
