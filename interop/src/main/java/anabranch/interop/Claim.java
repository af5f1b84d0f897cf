package anabranch.interop;

/** One statement about a broker. It holds unless `check` throws. */
interface Claim {
    void check(String topic) throws Exception;
}
